"""`deploy`: a compiled model on a board: sent, run, held against the reference, timed; the record.

    model = mlc.compile("model.onnx", "aarch64")
    with mlc.connect("ssh://pi@raspberrypi.local") as board:
        done = mlc.deploy(model, board, {"input": x})
    done.ok, done.outputs["y"], done.record()

On an emulated board the model runs exactly once, checked and counted together, and the figure to
quote is executed instructions. Elsewhere a first run is checked, then the board times the rest.

The record, as JSON; `null` is what is not known, as everything about a board that was not there:

    record            1: the version of this form
    model             name
    target            what `Target` takes again
    precision         "float32", as the model says, or "float16"
    level             which of the model's CPU levels it is; "base" where there is one
    board             url, machine, cpu_model, cores, features [str], kernel, memory_bytes,
                      emulated, box [str] (of wire.BOX, what holds for kernels there; null:
                      it does not say)
    inputs            [name, shape, dtype, source: "given" or "seed 0"]
    outputs           [name, shape, dtype, max_abs_err, max_rel_err (of the largest reference), ok];
                      the last three null where nothing was known. stepped: how many elements are
                      further off than all others may be, since an integer made of a float fell on
                      its other side; absent where none is
    reference         what outputs were held against: "evaluate", "given", or both, with a comma;
                      null where nothing was known, as for a saved model without given ones
    ok                whether all outputs that were held against something are right; null where
                      none was
    predictions       output, predicted [int], label [int], accuracy; where labels were given
    compile_s         seconds that the compiler took; null for a saved model
    upload_s          seconds for object, weights and inputs; upload_bytes, with the wire's framing
    object_bytes      of the ELF object; weights_bytes, of the weights; both before sending
    threads           that shared the work of each layer
    states            by the name of each input that stays on the board from run to run, that of
                      the output that is its next value
    arena_bytes       what the model needs on the board for its intermediate tensors and the
                      workspaces of all threads
    memory            alive_peak_bytes, alive_mean_bytes: of the arena, bytes of tensors that are
                      still needed, the mean over the time of a run; resident_peak_bytes,
                      resident_mean_bytes: of the process that runs kernels, whatever it holds,
                      absent where the board does not tell
    energy            joules_per_run, by a counter of the board; watts, by its power sensor: of all
                      that the sensor is of; null without a sensor
    limits            macs_per_instruction, macs_per_s, bytes_per_s: what the cores can do at most,
                      null where that is not known; source: in words, what that holds for
    latency           n, median_ms, p50_ms, p90_ms, p95_ms, p99_ms (of the samples), mad_ms,
                      first_ms (the first run after the upload: the sum of its layers),
                      samples [ms], number [of runs in each], outliers
                      [index], drift (of the last third to the first), verdict (ok, noisy,
                      throttled, migrated, emulated), findings [what, mend] that led to it, cores
                      [number, that it was pinned to], cluster (their model), per_run: {cycles,
                      instructions, cache_misses}, null where the board does not count;
                      conditions: {before, after: {fact: [a number for every `each` samples]}}, by
                      the names of mlc_rpc/wire.py
    instructions      executed per inference; null where several threads ran, which are not counted
    layers            [name, kernel (or registered function, which runs on the host, transfers
                      included), shape (of what it computes), dtype, median_us, instructions,
                      by_class: {mac, vector, load, store, branch, scalar}; turns, where the model
                      has loops or branches: how often the layer ran, of all of which it speaks;
                      predicted_ms, where there is `predicted`]
    predicted         ms, low, high (between which most truths are), threads: {count: ms}, core,
                      mhz: what the model would take on the target's board, by the counts of an
                      emulated run (docs/explanation/predictions.md); null where something was
                      measured, or nothing is known of the core
    interruptions     [what, method, seconds until it was back, rebooted: true, false or null]: how
                      often the board was lost at work, which then began anew; everything above is
                      of the time that went well
    runtime_version   of the program on the board
    spans             layer [by number], thread, begin_us (since the run began), us: when each
                      thread was at work in one run, by the board's clock; of 8,192 at most, and
                      only where it was asked for (--trace)

The command line adds `steps` [name, begin_s, seconds]: what this machine did, since the command
began; `details` (driver/details.py), where a report was asked for; and of runs that stopped after
a layer (--stop-after) `stops` [layer, kernel, turn, name (of the kernel's parameter), shape, dtype,
least, most, mean (of the finite numbers; null where there are none), not_finite, file].
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.extents import fits, results_of, stored
from mlc_rpc.module import Run, Span
from mlc_rpc.recover import persist
from mlc_rpc.timing import Timing
from mlc_rpc.wire import MAX_LAYER_TIMES, MAX_THREADS
from mlc_targets import Target
from mlc_targets.object_format import Model, Param

from ..artifact import SavedModel
from ..errors import DeployError, InputError
from ..predict.counting import Forecast, forecast
from .compare import NO_SLACK, Comparison, Slack, compare
from .inputs import SEED, draw
from .resources import energy_of, limits_of, memory_of

if TYPE_CHECKING:
    from mlc_rpc import Interruption, RemoteFunction, RemoteTensor, Session
    from mlc_rpc.host_call import HostCall
    from mlc_rpc.session import Device

    from .compile import CompiledModel

Deployable: TypeAlias = "CompiledModel | SavedModel"
Array = NDArray[Any]
Stage = Callable[[str], AbstractContextManager[object]]

RECORD_VERSION = 1
RUN_SECONDS = 600.0
TIMING_SECONDS = 2.0  # what all samples together should take, and the layers' profiles again
SAMPLES = (3, 20)  # at least, at most
WARM_BYTES = 8 << 20  # twice the largest cache that is simulated: more leaves nothing in it
SAMPLE_MS = 20  # runs that are faster are repeated within a sample


@runtime_checkable
class Levelled(Protocol):
    """A model with programs for several CPU levels."""

    def fitting(self, machine: str, features: frozenset[str]) -> Deployable: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One call of the call table, or (`on_host`) of a registered function, which `kernel` names;
    `shape` and `dtype` are of what it computes."""

    name: str
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    median_us: float | None = None
    by_class: Mapping[str, int] | None = None  # executed instructions
    misses: Mapping[str, int] | None = None  # lines that simulated caches fetched
    on_host: bool = False
    turns: int | None = None  # how often it ran, all of which the figures are of; None: once

    @property
    def instructions(self) -> int | None:
        return None if self.by_class is None else sum(self.by_class.values())


@dataclass(frozen=True, slots=True)
class Predictions:
    """The places of the largest numbers along an output's last axis, and what they should be."""

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
    """What came of a model on a board. `drawn` inputs were not given; `checks` are of outputs about
    which something was known."""

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
        """What the target's own board would take; None where that is not known."""
        counts = [(layer.by_class, layer.misses) for layer in self.layers]
        known = [(a, b) for a, b in counts if a is not None and b is not None]
        if len(known) < len(counts):
            return None
        return forecast(self.model.target, known)

    @property
    def _costs(self) -> list[float]:
        """Of the layers; 1 each where nothing is known of one."""
        found = [(x.instructions if self.emulated else x.median_us) for x in self.layers]
        return [1.0] * len(found) if None in found else [float(x or 0.0) for x in found]

    def record(self, name: str = "") -> dict[str, Any]:
        """As the module's docstring has it, ready for JSON; `name` is the model's."""
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
    """The record of a model that was compiled only."""
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


def deploy(
    model: Deployable | Levelled,
    board: Session,
    inputs: Mapping[str, Array] | None = None,
    *,
    expect: Mapping[str, Array] | None = None,
    labels: Array | None = None,
    threads: int | None = None,
    cores: str = "",
    timeout: float = RUN_SECONDS,
    spans: bool = False,
    stage: Stage = nullcontext,
) -> Deployment:
    """Sends the model, runs it, compares its outputs with the reference, and times it.

    Inputs that are not given are drawn from a seed. `expect` stands for the reference of the
    outputs that it names; a saved model has no other reference, so the rest is not compared. Of
    several CPU levels the best for this board runs. `labels` are held against the largest along
    an output's last axis. `cores`: "fast", "slow", or numbers as "0-3" or "4,5"; the fast ones
    unless told. `threads`: as many as these unless told, and one on an emulated board, since
    several are not counted. `timeout`: seconds that a run may take.
    `spans`: say of one run when each thread was at work on each layer.
    stage(name) is entered around each step. A board that is lost meanwhile is waited for, and all
    of it begins anew (mlc_rpc.persist); `interruptions` says so.

    Outputs that are wrong raise nothing: `ok` says so. Raises DeployError, InputError, RpcError.
    """
    if isinstance(model, Levelled):
        model = model.fitting(board.device.machine, board.device.features)
    refuse_unfit(model.target, board.board, board.device)
    described = described_model(model)
    inputs_of, outputs_of = described.arguments | described.states, described.results
    given = fitting("input", inputs or {}, inputs_of)
    expected = fitting("output", expect or {}, outputs_of)
    every = every_input(model, given)
    asked = set(outputs_of) - set(expected)
    slack: Mapping[str, Slack] = {}
    if asked and not isinstance(model, SavedModel):
        with stage("reference"):
            computed = model.evaluate(every)
            slack = model.slack(every, computed)
        expected |= {name: right for name, right in computed.items() if name in asked}
    refuse_cores(cores, board.board, board.device)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    measured, interruptions = persist(
        board,
        lambda: _measure(model, board, every, threads, cores, timeout, spans, stage),
        waiting=lambda: stage("reconnect"),
    )
    outputs = measured.outputs
    sources = {"evaluate" if name in asked else "given" for name in expected}
    return Deployment(
        model=model,
        url=board.board,
        device=board.device,
        emulated=board.emulated,
        inputs=every,
        drawn=frozenset(every) - frozenset(given),
        outputs=outputs,
        checks={
            name: compare(outputs[name], expected[name], model.precision, slack.get(name, NO_SLACK))
            for name in outputs
            if name in expected
        },
        reference=", ".join(sorted(sources)) or None,
        predictions=None if labels is None else predict(outputs, labels),
        layers=_measured(layers_of(model), measured.runs),
        timing=measured.timing,
        threads=threads,
        upload_s=measured.upload_s,
        upload_bytes=measured.upload_bytes,
        first_s=measured.first_s,
        interruptions=interruptions,
        spans=measured.spans,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What the board did with the model; `runs` are profiles."""

    outputs: Mapping[str, Array]
    runs: Sequence[Run]
    timing: Timing
    upload_s: float
    upload_bytes: int
    first_s: float
    spans: tuple[Span, ...]


def _measure(
    model: Deployable,
    board: Session,
    inputs: Mapping[str, Array],
    threads: int,
    cores: str,
    timeout: float,
    spans: bool,
    stage: Stage,
) -> _Attempt:
    """From the upload to the last profile; nothing of the board is held afterwards."""
    described = described_model(model)
    names = [p.name for p in (*described.inputs, *described.outputs)]
    with stage("upload"):
        began, sent = time.perf_counter(), board.sent_bytes
        module = board.load(model)
        tensors = [board.tensor(array) for array in stored(described, inputs).values()]
        results = [
            board.tensor(inputs[p.state]) if p.state else board.empty(_shape(p), p.dtype)
            for p in described.outputs
        ]
        upload = time.perf_counter() - began, board.sent_bytes - sent
    args = (*tensors, *results)
    with stage("run"):
        profile = partial(
            module.entry.profile, *args, threads=threads, cores=cores, timeout=timeout
        )
        first = profile(spans=spans and board.emulated)  # there the model runs once
        outputs = results_of(described, dict(zip(names, args, strict=True)))
    if board.emulated:
        runs, timing = [_warm(model, module.entry, args, first, timeout)], _as_timing(first)
    else:
        seconds = _seconds(first)
        repeat = min(max(round(TIMING_SECONDS / max(seconds, 1e-9)), SAMPLES[0]), SAMPLES[1])
        with stage("timing"):
            evaluator = module.entry.time_evaluator(
                number=1, repeat=repeat, min_repeat_ms=SAMPLE_MS, threads=threads, cores=cores,
                timeout=timeout * (repeat + 1),
            )  # fmt: skip
            timing = evaluator(*args)
            runs = _profiles(module.entry, args, repeat, threads, cores, timeout)
            runs[0] = replace(runs[0], turns=first.turns)
    one = profile(spans=True) if spans and not board.emulated else first
    return _Attempt(outputs, runs, timing, *upload, _seconds(first), one.spans)


def _warm(
    model: Deployable, entry: RemoteFunction, args: Sequence[RemoteTensor], first: Run,
    timeout: float,
) -> Run:  # fmt: skip
    """The run, with what caches fetch once they are warm: a model that they could hold runs again.
    What came out of the first run was read before."""
    counts = first.counts
    size = len(model.weights_bytes) + arena_bytes(model)
    if not counts or not counts[0].misses or size > WARM_BYTES or host_calls_of(model):
        return first
    again = entry.profile(*args, threads=1, timeout=timeout).counts
    assert again is not None
    return replace(
        first,
        counts=tuple(replace(a, misses=b.misses) for a, b in zip(counts, again, strict=True)),
    )


def _profiles(
    entry: RemoteFunction,
    args: Sequence[RemoteTensor],
    repeat: int,
    threads: int,
    cores: str,
    timeout: float,
) -> list[Run]:
    """Runs whose layers are timed: one after the other on the board, as the whole model is."""
    if entry.module.host_calls:
        return [
            entry.profile(*args, threads=threads, cores=cores, timeout=timeout)
            for _ in range(repeat)
        ]
    most = max(1, MAX_LAYER_TIMES // max(len(entry.module.model.calls), 1))
    evaluator = entry.time_evaluator(
        number=1, repeat=min(repeat, most), min_repeat_ms=SAMPLE_MS, threads=threads, cores=cores,
        layers=True, timeout=timeout * (repeat + 1),
    )  # fmt: skip
    layers = evaluator(*args).layers
    return [Run(tuple(round(seconds * 1e9) for seconds in row), None) for row in layers]


def refuse_cores(cores: str, url: str, device: Device) -> None:
    """Raises DeployError where the text names no cores, Refused where the board lacks them."""
    try:
        device.refuse_cores(cores, url)
    except ValueError as error:
        mend = "fast, slow, or numbers such as 0-3 or 4,5"
        raise DeployError(str(error), where=url, mend=mend) from None


def thread_count(board: Session, cores: str) -> int:
    """One for each of the cores."""
    return min(board.device.count_cores(cores), MAX_THREADS)


def refuse_unfit(target: Target, url: str, device: Device) -> None:
    """Raises DeployError when the board cannot run the target's code, naming what it lacks."""
    if target.arch != device.machine:
        raise DeployError(
            f"the board runs programs for {device.machine}, and the target is {target.arch}",
            where=f"{url}, for the target {target.short_name}",
            mend="another board, or compiled without a target: then the board says what it is",
        )
    lacks = sorted(set(target.required_features) - device.features)
    if lacks:
        raise DeployError(
            f"the board lacks {', '.join(lacks)}, which code for the target needs",
            where=f"{url} ({cpu_model(device)}), for the target {target.short_name}",
            mend="another board, or compiled without a target: then the board says what it has",
        )


def fitting(kind: str, given: Mapping[str, Array], params: Mapping[str, Param]) -> dict[str, Array]:
    """The arrays, held against the names, shapes and dtypes of the model. Raises InputError."""
    given = {name: np.asarray(array) for name, array in given.items()}  # of lists, too
    for name, array in given.items():
        if name not in params:
            near = get_close_matches(name, params, 3, 0.5) or list(params)[:5]
            raise InputError(
                f"the model has no {kind} '{name}'", mend=", ".join(near) or "none: it takes none"
            )
        wanted = params[name]
        if not fits(wanted, array.shape) or array.dtype.name != wanted.dtype:
            raise InputError(
                f"{kind} '{name}' is {wanted}, and the array given is "
                f"{array.dtype.name}{list(array.shape)}",
                mend="astype and reshape of numpy",
            )
    return given


def every_input(model: Deployable, given: Mapping[str, Array]) -> dict[str, Array]:
    """The model's inputs and states; those that are not given are drawn from a seed."""
    described = described_model(model)
    return {
        n: given[n] if n in given else draw(n, _shape(p), p.dtype, model.index_extents.get(n))
        for n, p in (described.arguments | described.states).items()
    }


def predict(outputs: Mapping[str, Array], labels: Array) -> Predictions | None:
    """Of the first output with one row per label; None where there is none."""
    for name, output in outputs.items():
        if output.ndim > 0 and output.shape[:-1] == labels.shape:
            return Predictions(name, output.argmax(-1), labels)
    return None


def described_model(model: Deployable) -> Model:
    """What the model's object says of it."""
    described = model.metadata.model
    assert described is not None  # as of whatever is Deployable
    return described


def layers_of(model: Deployable) -> tuple[Layer, ...]:
    """The calls of the model in the order that they run in, not measured."""
    results = {
        kernel.name: next(p for p in kernel.params if p.output)
        for kernel in model.metadata.kernels.values()
    }
    layers = [
        Layer(call.layer, call.kernel, _shape(results[call.kernel]), results[call.kernel].dtype)
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


def _measured(layers: Sequence[Layer], runs: Sequence[Run]) -> tuple[Layer, ...]:
    """The layers with what runs say of them; instructions on the host are not counted."""
    counts, run_turns = runs[0].counts, runs[0].turns
    numbers = {False: itertools.count(), True: itertools.count()}
    measured: list[Layer] = []
    for layer in layers:
        n = next(numbers[layer.on_host])
        took = [(run.host_nanoseconds if layer.on_host else run.nanoseconds)[n] for run in runs]
        counted = None if counts is None or layer.on_host else counts[n]
        median_us = statistics.median(took) / 1e3
        turns = None if run_turns is None or layer.on_host else run_turns[n]
        measured.append(
            replace(
                layer,
                median_us=median_us,
                by_class=None if counted is None else counted.by_class,
                misses=None if counted is None else counted.misses,
                turns=turns,
            )
        )
    return tuple(measured)


def _as_timing(run: Run) -> Timing:
    return Timing((_seconds(run),), (1,), emulated=True)


def _seconds(run: Run) -> float:
    return (sum(run.nanoseconds) + sum(run.host_nanoseconds)) / 1e9


def _shape(param: Param) -> tuple[int, ...]:
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
    }


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
