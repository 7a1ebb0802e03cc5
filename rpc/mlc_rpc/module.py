"""A loaded object on the board: its kernels, and its model if it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.counters import CallCounts, per_index
from mlc_rpc.errors import Refused
from mlc_rpc.extents import results_of, stored
from mlc_rpc.host_call import HostCall, pieces, run_host_call, sample_on_host
from mlc_rpc.stopped import Stopped, call_of, never, results_at
from mlc_rpc.stream import Stream
from mlc_rpc.tensor import Handles, RemoteTensor
from mlc_rpc.timing import Timing, parse_conditions
from mlc_targets.object_format import Metadata, Model, Param

if TYPE_CHECKING:
    from mlc_rpc.session import Session

RUN_SECONDS = 60.0
TIME_SECONDS = 600.0
GRACE_SECONDS = 10.0  # the board ends a run that is too long; it has this long to say so

Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: nanoseconds of each call on the board, and executed instructions if counted.

    `host_nanoseconds`: of each host call, transfers included. `turns`: how often each call ran; its
    figures are sums over the iterations. None: once each. `spans`, if asked for: (call, thread,
    begin, duration) in nanoseconds of the board's clock since the run began. `places`, if the run
    stopped after a call: the offset of each of the call's operands."""

    nanoseconds: tuple[int, ...]
    counts: tuple[CallCounts, ...] | None
    host_nanoseconds: tuple[int, ...] = ()
    turns: tuple[int, ...] | None = None
    spans: tuple[Span, ...] = ()
    places: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run of a model."""

    outputs: dict[str, NDArray[Any]]
    run: Run


class RemoteFunction:
    """A kernel on the board, or the module's model (`name` is None). Takes tensors on the board: a
    model its inputs, then its outputs; a kernel its parameters in order.
    """

    def __init__(self, module: RemoteModule, name: str | None) -> None:
        self.module = module
        self.name = name

    def __repr__(self) -> str:
        return f"<RemoteFunction {self.name or 'model'} on {self.module.session.board}>"

    def __call__(
        self,
        *args: RemoteTensor,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> None:
        """Runs once, on `cores`: "fast", "slow", or numbers as "0-3" or "4,5". The default is the
        fast ones; all cores if `threads` are more than those.

        Raises Crashed, Timeout, Refused (wrong arguments, a board that is busy or has no such
        cores).
        """
        self.repeated(*args, threads=threads, cores=cores, timeout=timeout)()

    def repeated(
        self,
        *args: RemoteTensor,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> Callable[[], object]:
        """The call with these arguments as a function. The request is packed once, so repeated
        calls are cheaper. Raises Refused for arguments of another session."""
        options = _shared(threads, cores)
        if self._host_calls:
            return partial(self._run, args, options, timeout)
        return self._prepared(args, options | {"quiet": True}, timeout)

    def repeated_total(
        self,
        *args: RemoteTensor,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> Callable[[], Run]:
        """As `repeated`, for `profile` with `total`."""
        if self._host_calls or (threads == 1 and self.module.session.counter is not None):
            return partial(
                self.profile, *args, total=True, threads=threads, cores=cores, timeout=timeout
            )
        call = self._prepared(args, _shared(threads, cores) | {"total": True}, timeout)
        return lambda: Run(tuple(call()["nanoseconds"]), None)

    def asked(
        self,
        *args: RemoteTensor,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> Callable[[], Callable[[], Run]] | None:
        """As `repeated_total`, in two parts: the function asks for a run and returns a function
        that waits for it. One run can be asked for while another one is under way; it begins when
        that one has ended. None if this machine takes part in each run."""
        if self._host_calls or (threads == 1 and self.module.session.counter is not None):
            return None
        options = _shared(threads, cores) | {"total": True}
        link = self.module.link
        request = link.prepare("run", *self._params("run", args, options, timeout))

        def ask() -> Callable[[], Run]:
            pending = link.send_prepared(request, 2 * timeout + GRACE_SECONDS)
            return lambda: Run(tuple(link.wait(pending)["nanoseconds"]), None)

        return ask

    def _prepared(
        self, args: Sequence[RemoteTensor], options: dict[str, Any], timeout: float
    ) -> Callable[[], Any]:
        """A run whose request is packed once."""
        params = self._params("run", args, options, timeout)
        link = self.module.link
        return partial(link.call_prepared, link.prepare("run", *params), timeout + GRACE_SECONDS)

    def profile(
        self,
        *args: RemoteTensor,
        until: int | None = None,
        threads: int = 1,
        cores: str = "",
        spans: bool = False,
        total: bool = False,
        timeout: float = RUN_SECONDS,
    ) -> Run:
        """Runs once and times each call; counts its instructions if the board counts and one thread
        runs. `until`: how many calls to run. `spans`: record when each thread worked on each call,
        at two reads of the clock each. `total`: one figure for all calls, which is cheaper. A model
        with host calls ignores `spans` and `total`, a board that counts ignores `total`.
        """
        counter = self.module.session.counter if threads == 1 else None
        options = _shared(threads, cores) | {"mark": counter is not None}
        if spans and not self._host_calls:
            options["spans"] = True
        elif total and counter is None and not self._host_calls:
            options["total"] = True
        if until is not None:
            options["until"] = until
        if counter:
            counter.start()
        run = self._run(args, options, timeout)
        if counter is None:
            return run
        if run.turns is None:
            return replace(run, counts=tuple(counter.take(len(run.nanoseconds))))
        return replace(run, counts=tuple(per_index(counter.take(sum(run.turns)), run.turns)))

    def stop_after(
        self,
        *args: RemoteTensor,
        layer: str,
        turn: int = 0,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> Stopped:
        """Runs a model up to the end of an iteration of a layer and returns the layer's results.
        Iterations count from 0, over all loops around the layer. Raises Refused for an unknown
        layer, and for an iteration that does not come."""
        module, board = self.module, self.module.session.board
        if turn < 0:
            raise ValueError(f"iterations count from 0, and {turn} is below")
        number = call_of(module.model, layer, board)
        call = module.model.calls[number]
        run = self._run(args, _shared(threads, cores) | {"stop": [number, turn]}, timeout)
        if run.places is None:
            raise never(layer, turn, 1 if run.turns is None else run.turns[number], board)
        if len(run.places) != len(call.args):
            what = f"{len(run.places)} places of {len(call.args)} operands"
            raise module.link.broken(what, "run")
        kernel = module.metadata.kernels[call.kernel]
        results = results_at(kernel, call, run.places, self._tensors(args))
        return Stopped(layer, call.kernel, turn, results)

    def time_evaluator(
        self,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        cache_flush_bytes: int = 0,
        *,
        threads: int = 1,
        cores: str = "",
        layers: bool = False,
        timeout: float = TIME_SECONDS,
    ) -> Callable[..., Timing]:
        """A function of the same arguments that times the run on the board.

        There are `repeat` samples. A sample is the mean of `number` runs, or of more if those take
        less than `min_repeat_ms` together. Warm-up runs come first and are discarded: one, or as
        many as take `min_repeat_ms`. Before each sample, `cache_flush_bytes` of other memory are
        touched. `layers` also times each call; if reading the board's clock is slow, this slows
        small models down, so time the whole model without it. A model with host calls is timed
        here, transfers included, without cache_flush_bytes and layers.
        """
        shared = _shared(threads, cores)
        options = shared | {
            "number": number,
            "repeat": repeat,
            "min_repeat_ms": min_repeat_ms,
            "limit_zero_time_iterations": limit_zero_time_iterations,
            "cooldown_interval_ms": cooldown_interval_ms,
            "repeats_to_cooldown": repeats_to_cooldown,
            "cache_flush_bytes": cache_flush_bytes,
        }
        if layers:
            options["layers"] = True

        def evaluate(*args: RemoteTensor) -> Timing:
            if self._host_calls:
                samples, runs = sample_on_host(
                    lambda: self._run(args, shared, timeout), number, repeat, min_repeat_ms,
                    cooldown_interval_ms, repeats_to_cooldown,
                )  # fmt: skip
                return Timing(samples, runs, self.module.session.emulated, threads)
            answer = self._call("time", args, options, timeout)
            device = self.module.session.device
            models = [cpu.model for cpu in device.cpus]
            try:
                conditions = parse_conditions(answer, models, device.fast_cores, device.slow_cores)
            except ValueError as error:
                raise self.module.link.broken(str(error), "time") from error
            cost = answer["layer_cost_s"]
            calls = tuple(tuple(max(n / 1e9 - cost, 0.0) for n in row) for row in answer["layers"])
            samples, runs = tuple(answer["samples"]), tuple(answer["number"])
            emulated = self.module.session.emulated
            return Timing(samples, runs, emulated, threads, conditions, calls)

        return evaluate

    @property
    def _host_calls(self) -> Sequence[HostCall]:
        return () if self.name else self.module.host_calls

    def _run(self, args: Sequence[RemoteTensor], options: dict[str, Any], timeout: float) -> Run:
        """One run, without counting instructions."""
        if not self._host_calls:
            return self._run_on_board(args, options, timeout)
        total, tensors = len(self.module.model.calls), self._tensors(args)
        stop, places = options.pop("stop", None), None
        until = min(options.get("until", total), total)
        on_board: list[int] = []
        turns_of_all: list[int] | None = None
        on_host: list[int] = []
        for piece in pieces(self._host_calls, until, total):
            if isinstance(piece, range):
                part = {**options, "from": piece.start, "until": piece.stop}
                here = stop is not None and stop[0] in piece
                run = self._run_on_board(args, part | ({"stop": stop} if here else {}), timeout)
                on_board += run.nanoseconds
                if run.turns is not None:
                    turns_of_all = [*(turns_of_all or ()), *run.turns]
                if here:
                    places = run.places
                    break
            else:
                began = time.perf_counter_ns()
                run_host_call(piece, tensors, self.module.weights_at)
                on_host.append(time.perf_counter_ns() - began)
        every = None if turns_of_all is None else tuple(turns_of_all)
        return Run(tuple(on_board), None, tuple(on_host), every, (), places)

    def _tensors(self, args: Sequence[RemoteTensor]) -> dict[tuple[str, int], RemoteTensor]:
        """The model's tensors by space and index."""
        inputs = len(self.module.model.inputs)
        tensors = {("input", n): tensor for n, tensor in enumerate(args[:inputs])}
        tensors |= {("output", n): tensor for n, tensor in enumerate(args[inputs:])}
        if self.module.arena is not None:
            tensors["arena", 0] = self.module.arena
        return tensors

    def _run_on_board(
        self, args: Sequence[RemoteTensor], options: dict[str, Any], timeout: float
    ) -> Run:
        answer = self._call("run", args, options, timeout)
        turns, places = (
            None if answer[name] is None else tuple(answer[name]) for name in ("turns", "places")
        )
        spans = tuple((call, thread, begin, took) for call, thread, begin, took in answer["spans"])
        return Run(tuple(answer["nanoseconds"]), None, (), turns, spans, places)

    def _call(
        self,
        method: str,
        args: Sequence[RemoteTensor],
        options: Mapping[str, Any],
        timeout: float,
    ) -> Any:
        params = self._params(method, args, options, timeout)
        return self.module.link.call(method, *params, timeout=timeout + GRACE_SECONDS)

    def _params(
        self,
        method: str,
        args: Sequence[RemoteTensor],
        options: Mapping[str, Any],
        timeout: float,
    ) -> tuple[Any, ...]:
        """Parameters of a request. Raises Refused for arguments of another session."""
        for position, arg in enumerate(args):
            if not isinstance(arg, RemoteTensor):
                raise TypeError(
                    f"argument {position} of {self.name or 'the model'} is not a tensor on the "
                    f"board but {type(arg).__name__}\n  try: board.tensor(...)"
                )
            if arg.link is not self.module.link:  # its handle is another tensor's here
                raise Refused(
                    f"argument {position} of {self.name or 'the model'} is a tensor of another "
                    "session",
                    board=self.module.session.board,
                    method=method,
                    attempt="board.tensor(...) of this session",
                )
        if self.name is None:  # says which calls run, which gives the length of the answer
            total = len(self.module.model.calls)
            until = min(options.get("until", total), total)
            options = {"from": 0, **options, "until": until}
        return (
            self.module.handle,
            self.name,
            [arg.handle for arg in args],
            {**options, "timeout_ms": max(1, round(timeout * 1000))},
        )


def _shared(threads: int, cores: str) -> dict[str, object]:
    """The options `threads` and `cores`."""
    return {"threads": threads} | ({"cores": cores} if cores else {})


class RemoteModule:
    """A loaded object. `module["add"]` is a kernel; `run` runs its model.

    `arena` is the memory that the model's calls share, as uint8. The call table
    (`metadata.model.calls`) has the offsets of each layer's operands in it.
    """

    def __init__(
        self,
        session: Session,
        handles: Handles,
        handle: int,
        metadata: Metadata,
        arena: RemoteTensor | None,
        image_bytes: int,
        host_calls: Sequence[HostCall] = (),
        weights: bytes | memoryview = b"",
    ) -> None:
        self.session = session
        self.link = session.link  # the handle is valid on this link only; a session may reconnect
        self._handles = handles
        self.handle = handle
        self.metadata = metadata
        self.arena = arena
        self.image_bytes = image_bytes
        self.host_calls = host_calls
        self._weights = weights if host_calls else b""
        self._constants: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._inputs: list[RemoteTensor] | None = None
        self._outputs: list[RemoteTensor] | None = None

    def __getitem__(self, name: str) -> RemoteFunction:
        """Raises Refused, naming the nearest kernels."""
        if name not in self.metadata.kernels:
            known = list(self.metadata.kernels)
            near = get_close_matches(name, known, 5, 0.4) or known[:5]
            raise Refused(
                f"the module has no kernel '{name}'",
                board=self.session.board,
                attempt=", ".join(near),
            )
        return RemoteFunction(self, name)

    @property
    def entry(self) -> RemoteFunction:
        """The model as a function of tensors on the board: inputs, then outputs."""
        assert self.model
        return RemoteFunction(self, None)

    def run(
        self,
        inputs: Mapping[str, NDArray[Any]],
        timeout: float = RUN_SECONDS,
        *,
        threads: int = 1,
        cores: str = "",
    ) -> dict[str, NDArray[Any]]:
        """The model's outputs by name; the same bits for any number of threads. A state that is not
        among the inputs begins as zeros. Raises Refused when an input is missing or unknown."""
        args = self._bind(inputs)
        self.entry(*args, threads=threads, cores=cores, timeout=timeout)
        return self._results()

    def profile(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        until: int | None = None,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> ModelRun:
        """As `run`; also gives nanoseconds and instructions of every call of the call table."""
        args = self._bind(inputs)
        run = self.entry.profile(*args, until=until, threads=threads, cores=cores, timeout=timeout)
        return ModelRun(self._results(), run)

    def stop_after(
        self,
        inputs: Mapping[str, NDArray[Any]],
        layer: str,
        turn: int = 0,
        *,
        threads: int = 1,
        cores: str = "",
        timeout: float = RUN_SECONDS,
    ) -> Stopped:
        """As RemoteFunction.stop_after, for inputs by name."""
        args = self._bind(inputs)
        return self.entry.stop_after(
            *args, layer=layer, turn=turn, threads=threads, cores=cores, timeout=timeout
        )

    def time(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        cores: str = "",
        layers: bool = False,
        timeout: float = TIME_SECONDS,
        **options: int,
    ) -> Timing:
        """Times the model; `options` are time_evaluator's."""
        args = self._bind(inputs)
        evaluator = self.entry.time_evaluator(
            cores=cores, layers=layers, timeout=timeout, **options
        )
        return evaluator(*args)

    def stream(self, *, threads: int = 1, cores: str = "", timeout: float = RUN_SECONDS) -> Stream:
        """The model step by step, with its own states (mlc_rpc/stream.py)."""
        return Stream(self, threads=threads, cores=cores, timeout=timeout)

    def step(self, inputs: Mapping[str, NDArray[Any]] | NDArray[Any]) -> dict[str, NDArray[Any]]:
        """As Stream.step, on the module's own stream."""
        return self._own_stream.step(inputs)

    def reset(self) -> None:
        """Sets the states of `step` to zero."""
        self._own_stream.reset()

    def save_state(self) -> dict[str, NDArray[Any]]:
        """The states of `step` by the names of their inputs."""
        return self._own_stream.save_state()

    def load_state(self, states: Mapping[str, NDArray[Any]]) -> None:
        """The next `step` begins with these states."""
        self._own_stream.load_state(states)

    @cached_property
    def _own_stream(self) -> Stream:
        return self.stream()

    def close(self) -> None:
        """Unloads the object and frees its model's tensors."""
        for tensor in (self._inputs or []) + (self._outputs or []):
            tensor.close()
        if "_own_stream" in vars(self):
            self._own_stream.close()
            del self._own_stream
        self._inputs = self._outputs = None
        self._handles.free(self.handle, self.session.timeout)

    def weights_at(self, offset: int, size: int) -> NDArray[np.uint8]:
        """A piece of the weights for host calls: writable, and the same array each time."""
        if (offset, size) not in self._constants:
            whole = np.frombuffer(self._weights, np.uint8)
            self._constants[offset, size] = whole[offset : offset + size].copy()
        return self._constants[offset, size]

    @property
    def model(self) -> Model:
        """The module's model. Raises Refused if there is none."""
        if self.metadata.model is None:
            raise Refused(
                "the module holds no model",
                board=self.session.board,
                attempt=f"one of its kernels: {', '.join(list(self.metadata.kernels)[:5])}",
            )
        return self.metadata.model

    def _bind(self, inputs: Mapping[str, NDArray[Any]]) -> list[RemoteTensor]:
        """Writes the inputs to the board. Returns the inputs' and the outputs' tensors."""
        model = self.model
        names, states = model.arguments, model.states
        if set(inputs) - set(states) != set(names):
            missing = ", ".join(n for n in names if n not in inputs)
            unknown = ", ".join(n for n in inputs if n not in names and n not in states)
            faults = (missing and f"missing: {missing}", unknown and f"unknown: {unknown}")
            raise Refused(
                f"the model's inputs are not these ({'; '.join(filter(None, faults))})",
                board=self.session.board,
                attempt=f"inputs {', '.join(f'{name}: {p}' for name, p in names.items())}",
            )
        try:
            arrays = stored(model, inputs)
        except ValueError as error:
            raise Refused(str(error), board=self.session.board) from None
        if self._inputs is None or self._outputs is None:
            self._inputs = [self._allocate(param) for param in model.inputs]
            self._outputs = [self._allocate(param) for param in model.outputs]
        for param, tensor in zip(model.inputs, self._inputs, strict=True):
            tensor.write(arrays[param.name])
        for param, tensor in zip(model.outputs, self._outputs, strict=True):
            if param.state in inputs:
                tensor.write(np.asarray(inputs[param.state]))
            elif param.state:
                tensor.fill("zero")
        return self._inputs + self._outputs

    def _allocate(self, param: Param) -> RemoteTensor:
        return self.session.empty([int(extent) for extent in param.shape], param.dtype)

    def _results(self) -> dict[str, NDArray[Any]]:
        params = (*self.model.inputs, *self.model.outputs)
        tensors = (*(self._inputs or ()), *(self._outputs or ()))
        names = (p.name for p in params)
        return results_of(self.model, dict(zip(names, tensors, strict=True)))
