"""The results of a model on a board, and their record.

The record is JSON. `null` means unknown, such as everything about the board if there was none:

    record            1: the version of this form
    model             name
    target            text that `Target` parses
    precision         "float32", the model's own, or "float16"
    level             its CPU level; "base" for a model with one level
    board             url, machine, cpu_model, cores, features [str], kernel, memory_bytes,
                      emulated, box [str] (the restrictions of wire.BOX on kernels; null: the
                      board does not say)
    inputs            [name, shape, dtype, source: "given" or "seed 0"]
    outputs           [name, shape, dtype, max_abs_err, max_rel_err (of the largest reference), ok];
                      the last three null without a reference. stepped: how many elements are
                      further off than the bound, because a float was rounded to the neighbouring
                      integer; absent if none is. moves: how far the model itself moves when the
                      last digit of its inputs and weights changes; absent unless the output is
                      right only within a few times that
    reference         where the outputs' reference is from: "evaluate", "given", or both, with a
                      comma; null without one, as for a saved model without given outputs
    ok                whether all outputs with a reference are right; null if none has one
    predictions       output, predicted [int], label [int], accuracy; if labels were given
    compile_s         seconds that the compiler took; null for a saved model
    upload_s          seconds for object, weights and inputs; upload_bytes, with the wire's framing
    object_bytes      of the ELF object; weights_bytes, of the weights; both before sending
    threads           that shared the work of each layer
    states            {input: output}: inputs that stay on the board from run to run, and the output
                      that is the next value of each
    arena_bytes       memory on the board for intermediate tensors and the workspaces of all threads
    memory            alive_peak_bytes, alive_mean_bytes: bytes of the arena in tensors that are
                      still needed, the mean over the time of a run; resident_peak_bytes,
                      resident_mean_bytes: of the whole process that runs kernels, absent if the
                      board does not tell
    energy            joules_per_run, by a counter of the board; watts, by its power sensor: of
                      everything the sensor covers; null without a sensor
    limits            macs_per_instruction, macs_per_s (in `precision`), bytes_per_s: the most that
                      the threads' cores can do, null if unknown; by_dtype {dtype: macs_per_s};
                      source: in words, which cores or registers these are for
    latency           n, median_ms, p50_ms, p90_ms, p95_ms, p99_ms (of the samples), mad_ms,
                      first_ms (the first run after the upload: the sum of its layers),
                      samples [ms], number [of runs in each], outliers
                      [index], drift (of the last third to the first), verdict (ok, noisy,
                      throttled, migrated, emulated), findings [what, mend] that led to it, cores
                      [number, that it was pinned to], cluster (their model), per_run: {cycles,
                      instructions, cache_misses}, null if the board does not count;
                      conditions: {before, after: {fact: [a number for every `each` samples]}}, by
                      the names of mlc_rpc/wire.py
    instructions      executed per inference; null for several threads, which are not counted
    layers            [name, kernel (or registered function, which runs on the host, transfers
                      included), shape (of its result), dtype, median_us, instructions,
                      by_class: {mac, vector, load, store, branch, scalar}; turns, if the model
                      has loops or branches: how often the layer ran, and the other figures are of
                      all these turns; predicted_ms, if there is `predicted`]
    predicted         ms, low, high (most true times lie between), threads: {count: ms}, core, mhz:
                      the model's time on the target's board, predicted from the counts of an
                      emulated run (docs/explanation/predictions.md); null if the time was
                      measured, or the core is unknown. calibrated: board, date, cpu, like
                      (whether `core` stands in for an unknown one): the user's own board, whose
                      measurements were used; null without one
    interruptions     [what, method, seconds until it was back, rebooted: true, false or null]: when
                      the board was lost; the work then began anew, and everything above is of the
                      attempt that succeeded
    runtime_version   of the program on the board
    spans             layer [by number], thread, begin_us (since the run began), us: when each
                      thread worked in one run, by the board's clock; at most 8,192, and only on
                      request (--trace)

The command line adds `steps` [name, begin_s, seconds]: the steps on this machine, since the command
began; `details` (driver/details.py), if a report was asked for; and for runs that stopped after
a layer (--stop-after) `stops` [layer, kernel, turn, name (of the kernel's parameter), shape, dtype,
least, most, mean (of the finite numbers; null if there are none), not_finite, file].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from mlc_rpc.module import Span
from mlc_rpc.timing import Timing
from mlc_targets.object_format import Model, Param

from ..artifact import SavedModel
from ..predict.counting import Forecast, forecast
from .compare import Comparison
from .inputs import SEED
from .resources import energy_of, limits_of, memory_of

if TYPE_CHECKING:
    from mlc_rpc import Interruption
    from mlc_rpc.host_call import HostCall
    from mlc_rpc.session import Device

    from ..predict.calibration import Calibration
    from .compile import CompiledModel

Deployable: TypeAlias = "CompiledModel | SavedModel"
Array = NDArray[Any]

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One call of the call table, or (`on_host`) of the registered function named `kernel`.
    `shape` and `dtype` are of its result."""

    name: str
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    median_us: float | None = None
    by_class: Mapping[str, int] | None = None  # executed instructions
    misses: Mapping[str, int] | None = None  # lines that simulated caches fetched
    on_host: bool = False
    turns: int | None = None  # how often it ran; the figures are of all iterations; None: once

    @property
    def instructions(self) -> int | None:
        return None if self.by_class is None else sum(self.by_class.values())


@dataclass(frozen=True, slots=True)
class Predictions:
    """The argmax along an output's last axis, and the labels that it should equal."""

    output: str
    predicted: Array
    label: Array

    @property
    def correct(self) -> int:
        return int((self.predicted == self.label).sum())

    @property
    def accuracy(self) -> float:
        return self.correct / self.label.size if self.label.size else 0.0


@dataclass(frozen=True)
class Deployment:
    """The results of a model on a board. `drawn` inputs were not given; `checks` has the outputs
    with a reference."""

    model: Deployable
    url: str
    device: Device
    emulated: bool
    inputs: Mapping[str, Array]
    drawn: frozenset[str]
    outputs: Mapping[str, Array]
    checks: Mapping[str, Comparison]
    reference: str | None
    predictions: Predictions | None
    layers: tuple[Layer, ...]
    timing: Timing
    threads: int
    upload_s: float
    upload_bytes: int
    first_s: float
    interruptions: tuple[Interruption, ...] = ()
    spans: tuple[Span, ...] = ()
    own: Calibration | None = None  # of the board that an emulated one stands for

    @property
    def ok(self) -> bool:
        """Whether no output is known to be wrong."""
        return all(check.ok for check in self.checks.values())

    @property
    def instructions(self) -> int | None:
        counts = [layer.instructions for layer in self.layers]
        return sum(n for n in counts if n is not None) if None not in counts else None

    @property
    def forecast(self) -> Forecast | None:
        """The time on the target's own board, or the user's; None if that is unknown."""
        counts = [(layer.by_class, layer.misses) for layer in self.layers]
        known = [(a, b) for a, b in counts if a is not None and b is not None]
        if len(known) < len(counts):
            return None
        return forecast(self.model.target, known, self.own)

    @property
    def _costs(self) -> list[float]:
        """The costs of the layers; 1 each if that of any is unknown."""
        found = [(x.instructions if self.emulated else x.median_us) for x in self.layers]
        return [1.0] * len(found) if None in found else [float(x or 0.0) for x in found]

    def record(self, name: str = "") -> dict[str, Any]:
        """The record that the module's docstring describes; `name` is the model's."""
        device, foreseen = self.device, self.forecast
        return compiled_record(self.model, name) | {
            "board": {
                "url": self.url,
                "machine": device.machine,
                "cpu_model": cpu_model(device),
                "cores": device.cores,
                "features": sorted(device.features),
                "kernel": device.kernel,
                "memory_bytes": device.memory,
                "box": None if device.box is None else list(device.box),
                "emulated": self.emulated,
            },
            "inputs": [
                _tensor(n, a) | {"source": f"seed {SEED}" if n in self.drawn else "given"}
                for n, a in self.inputs.items()
            ],
            "outputs": [
                _tensor(n, output) | _verdict(self.checks.get(n))
                for n, output in self.outputs.items()
            ],
            "reference": self.reference,
            "ok": self.ok if self.checks else None,
            "predictions": self.predictions
            and {
                "output": self.predictions.output,
                "predicted": self.predictions.predicted.tolist(),
                "label": self.predictions.label.tolist(),
                "accuracy": self.predictions.accuracy,
            },
            "threads": self.threads,
            "limits": limits_of(self.model.target, self.model.precision, self.threads),
            "arena_bytes": arena_bytes(self.model, self.threads),
            "upload_s": self.upload_s,
            "upload_bytes": self.upload_bytes,
            "memory": memory_of(
                self.model.metadata, host_calls_of(self.model), self._costs, self.timing
            ),
            "energy": energy_of(self.timing),
            "latency": self.timing.record() | {"first_ms": self.first_s * 1e3},
            "instructions": self.instructions,
            "layers": _layers(self.layers, foreseen),
            "predicted": foreseen and foreseen.record(),
            "interruptions": [asdict(each) for each in self.interruptions],
            "runtime_version": device.runtime,
            **({"spans": [_span(span) for span in self.spans]} if self.spans else {}),
        }


def compiled_record(model: Deployable, name: str = "") -> dict[str, Any]:
    """The record of a model that was compiled, but not run."""
    absent = ("board", "inputs", "outputs", "reference", "ok", "predictions", "threads",
              "upload_s", "upload_bytes", "latency", "instructions", "predicted", "interruptions",
              "runtime_version", "memory", "energy")  # fmt: skip
    return {
        "record": RECORD_VERSION,
        "model": name or model.name,
        "target": str(model.target),
        "precision": model.precision,
        "level": model.level,
        "compile_s": model.seconds,
        "object_bytes": len(model.object_bytes),
        "weights_bytes": len(model.weights_bytes),
        "arena_bytes": arena_bytes(model),
        "states": {p.state: p.name for p in described_model(model).states.values()},
        "layers": [_layer(layer) for layer in layers_of(model)],
        "limits": limits_of(model.target, model.precision),
    } | dict.fromkeys(absent)


def described_model(model: Deployable) -> Model:
    """The object's description of the model."""
    described = model.metadata.model
    assert described is not None  # every Deployable has one
    return described


def layers_of(model: Deployable) -> tuple[Layer, ...]:
    """The calls of the model, in the order in which they run, without times."""
    results = {
        kernel.name: next(p for p in kernel.params if p.output)
        for kernel in model.metadata.kernels.values()
    }
    layers = [
        Layer(
            call.layer, call.kernel, fixed_shape(results[call.kernel]), results[call.kernel].dtype
        )
        for call in described_model(model).calls
    ]
    for call in reversed(host_calls_of(model)):
        made = call.types[len(call.types) - call.outputs :]
        shape, dtype = (tuple(made[0].shape), made[0].dtype) if made else ((), "")
        layers.insert(call.at_call, Layer(call.layer, call.name, shape, dtype, on_host=True))
    return tuple(layers)


def host_calls_of(model: Deployable) -> Sequence[HostCall]:
    """The model's calls of registered functions; a saved model has none."""
    calls: Sequence[HostCall] = getattr(model, "host_calls", ())
    return calls


def arena_bytes(model: Deployable, threads: int = 1) -> int:
    """Intermediate tensors, and for each thread the largest workspace of a kernel."""
    workspaces = [kernel.workspace for kernel in model.metadata.kernels.values()]
    return described_model(model).arena_bytes + threads * max(workspaces, default=0)


def cpu_model(device: Device) -> str:
    """The board's kinds of cores, in the board's order."""
    return ", ".join(dict.fromkeys(cpu.model or "unknown" for cpu in device.cpus)) or "unknown"


def fixed_shape(param: Param) -> tuple[int, ...]:
    return tuple(extent for extent in param.shape if isinstance(extent, int))


def _span(span: Span) -> dict[str, Any]:
    layer, thread, begin, took = span
    return {"layer": layer, "thread": thread, "begin_us": begin / 1e3, "us": took / 1e3}


def _tensor(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}


def _layers(layers: Sequence[Layer], foreseen: Forecast | None) -> list[dict[str, Any]]:
    if foreseen is None:
        return [_layer(layer) for layer in layers]
    each = zip(layers, foreseen.one.layers, strict=True)
    return [_layer(layer) | {"predicted_ms": ms} for layer, ms in each]


def _layer(layer: Layer) -> dict[str, Any]:
    turns = {} if layer.turns is None else {"turns": layer.turns}
    return {
        "name": layer.name,
        "kernel": layer.kernel,
        "shape": list(layer.shape),
        "dtype": layer.dtype,
        "median_us": layer.median_us,
        "instructions": layer.instructions,
        "by_class": None if layer.by_class is None else dict(layer.by_class),
        **turns,
    }


def _verdict(check: Comparison | None) -> dict[str, Any]:
    if check is None:
        return {"max_abs_err": None, "max_rel_err": None, "ok": None}
    return {
        "max_abs_err": _number(check.max_abs_err),
        "max_rel_err": _number(check.max_rel_err),
        "ok": check.ok,
        **({"stepped": check.stepped} if check.stepped else {}),
        **({"moves": check.moves} if check.moves else {}),
    }


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
