"""Host calls: calls of a model that are functions of this machine.

The board runs the call table up to a host call, the function runs here, and the board goes on. If
the board is a process of this machine, the function works on the board's memory; otherwise its
inputs are read, and its outputs written, over the wire.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.tensor import RemoteTensor, carrier

Array = NDArray[Any]


class HostPlace(Protocol):
    """`size` bytes from `offset` of the "arena", the "weights", or the index-th "input" or
    "output"."""

    @property
    def space(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...


class HostType(Protocol):
    """The shape (all numbers) and the dtype of an argument."""

    @property
    def shape(self) -> Sequence[Any]: ...
    @property
    def dtype(self) -> str: ...


class HostCall(Protocol):
    """A function called after the first `at_call` calls of the table. Its arrays have the `types`
    and lie at `args`; it writes the last `outputs` of them. `name` is the function's, `layer` the
    model's name for the call."""

    @property
    def name(self) -> str: ...
    @property
    def layer(self) -> str: ...
    @property
    def at_call(self) -> int: ...
    @property
    def args(self) -> Sequence[HostPlace]: ...
    @property
    def types(self) -> Sequence[HostType]: ...
    @property
    def outputs(self) -> int: ...
    def __call__(self, *arrays: Array) -> None: ...


def pieces(host_calls: Sequence[HostCall], until: int, total: int) -> Iterator[range | HostCall]:
    """The first `until` of the table's `total` calls as ranges, and the host calls between."""
    done = 0
    for call in sorted(host_calls, key=lambda c: c.at_call):
        if call.at_call >= until and until < total:
            break
        if call.at_call > done:
            yield range(done, call.at_call)
            done = call.at_call
        yield call
    if done < until:
        yield range(done, until)


def run_host_call(
    call: HostCall,
    tensors: Mapping[tuple[str, int], RemoteTensor],
    weights_at: Callable[[int, int], NDArray[np.uint8]],
) -> None:
    """Runs a host call. `tensors` are the model's, by space and index; weights_at(offset, size)
    gives a piece of its weights. Raises what the function raises."""
    arrays: list[Array] = []
    results: list[Callable[[], None]] = []
    first_output = len(call.args) - call.outputs
    for number, (place, kind) in enumerate(zip(call.args, call.types, strict=True)):
        dtype, shape = carrier(kind.dtype), tuple(int(extent) for extent in kind.shape)
        size = math.prod(shape) * dtype.itemsize
        if place.space == "weights":
            data = weights_at(place.offset, size)
        else:
            tensor = tensors[place.space, place.index]
            mapped = tensor.mapped()
            if mapped is not None:
                data = mapped[place.offset : place.offset + size]
            elif number < first_output:
                data = tensor.read_bytes(place.offset, size)
            else:
                data = np.empty(size, np.uint8)
                results.append(_writing(tensor, place.offset, data))
        arrays.append(data.view(dtype).reshape(shape))
    call(*arrays)
    for write in results:
        write()


def _writing(tensor: RemoteTensor, offset: int, data: NDArray[np.uint8]) -> Callable[[], None]:
    return lambda: tensor.write_bytes(offset, data)


def sample_on_host(
    run: Callable[[], object],
    number: int,
    repeat: int,
    min_repeat_ms: float,
    cooldown_interval_ms: float,
    repeats_to_cooldown: int,
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Seconds per run by this machine's clock, one sample per repeat, and the runs of each sample;
    counted as device_runtime/src/timer.c does."""
    samples: list[float] = []
    runs: list[int] = []
    run()  # not measured: faults pages in, fills caches
    for turn in range(1, repeat + 1):
        count = number
        while True:
            began = time.perf_counter()
            for _ in range(count):
                run()
            took = time.perf_counter() - began
            if took * 1e3 >= min_repeat_ms:
                break
            count = max(int(min_repeat_ms / (took * 1e3 / count)) + 1, int(count * 1.618) + 1)
        samples.append(took / count)
        runs.append(count)
        if repeats_to_cooldown and turn % repeats_to_cooldown == 0 and turn < repeat:
            time.sleep(cooldown_interval_ms / 1e3)
    return tuple(samples), tuple(runs)
