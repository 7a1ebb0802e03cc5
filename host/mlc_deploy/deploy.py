"""`deploy`: a compiled model on a board: sent, run, held against the reference, timed; the record.

    model = mlc.compile("model.onnx", "aarch64")
    with mlc.connect("ssh://pi@raspberrypi.local") as board:
        done = mlc.deploy(model, board, {"input": x})
    done.ok, done.outputs["y"], done.record()

On an emulated board the model runs exactly once, checked and counted together, and the figure to
quote is executed instructions. Elsewhere a first run is checked, then the board times the rest.

The record, as JSON; `null` is what is not known, as everything about a board that was not there:

    model             name
    target            what `Target` takes again
    board             url, machine, cpu_model, cores, features [str], kernel, memory_bytes, emulated
    inputs            [name, shape, dtype, source: "given" or "seed 0"]
    outputs           [name, shape, dtype, max_abs_err, max_rel_err (of the largest reference), ok]
    reference         what outputs were held against: "evaluate", "given", or "evaluate, given"
    ok                whether all outputs are right
    predictions       output, predicted [int], label [int], accuracy; where labels were given
    compile_s         seconds that the compiler took
    upload_s          seconds for object, weights and inputs; upload_bytes, with the wire's framing
    object_bytes      of the ELF object; weights_bytes, of the weights; both before sending
    arena_bytes       what the model needs on the board for its intermediate tensors and workspaces
    latency           n, median_ms, p95_ms, mad_ms, samples [ms], verdict: ok, noisy or emulated
    instructions      executed per inference
    layers            [name, kernel, shape (of what it computes), dtype, median_us, instructions,
                      by_class: {mac, vector, load, store, branch, scalar}]
    runtime_version   of the program on the board
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mlc_targets import Target

from .codegen import metadata
from .compare import Comparison, compare
from .compile import CompiledModel
from .errors import DeployError, InputError
from .graph import TensorType, evaluate
from .inputs import SEED, draw

if TYPE_CHECKING:
    from mlc_rpc import Run, Session, Timing
    from mlc_rpc.session import Device

Array = NDArray[Any]
Stage = Callable[[str], AbstractContextManager[object]]

RUN_SECONDS = 600.0
TIMING_SECONDS = 2.0  # what all samples together should take, and the layers' profiles again
SAMPLES = (3, 20)  # at least, at most
SAMPLE_MS = 20  # runs that are faster are repeated within a sample


@dataclass(frozen=True, slots=True)
class Layer:
    """One call of the call table; `shape` and `dtype` are of what it computes."""

    name: str
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    median_us: float | None = None
    by_class: Mapping[str, int] | None = None  # executed instructions

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
    """What came of a model on a board. `drawn` inputs were not given."""

    model: CompiledModel
    url: str
    device: Device
    emulated: bool
    inputs: Mapping[str, Array]
    drawn: frozenset[str]
    outputs: Mapping[str, Array]
    checks: Mapping[str, Comparison]
    reference: str
    predictions: Predictions | None
    layers: tuple[Layer, ...]
    timing: Timing
    upload_s: float
    upload_bytes: int

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks.values())

    @property
    def instructions(self) -> int | None:
        counts = [layer.instructions for layer in self.layers]
        return sum(n for n in counts if n is not None) if None not in counts else None

    def record(self, name: str = "") -> dict[str, Any]:
        """As the module's docstring has it, ready for JSON; `name` is the model's."""
        timing, device = self.timing, self.device
        return compiled_record(self.model, name) | {
            "board": {
                "url": self.url,
                "machine": device.machine,
                "cpu_model": cpu_model(device),
                "cores": device.cores,
                "features": sorted(device.features),
                "kernel": device.kernel,
                "memory_bytes": device.memory,
                "emulated": self.emulated,
            },
            "inputs": [
                _tensor(n, a) | {"source": f"seed {SEED}" if n in self.drawn else "given"}
                for n, a in self.inputs.items()
            ],
            "outputs": [
                _tensor(n, self.outputs[n])
                | {
                    "max_abs_err": _number(check.max_abs_err),
                    "max_rel_err": _number(check.max_rel_err),
                    "ok": check.ok,
                }
                for n, check in self.checks.items()
            ],
            "reference": self.reference,
            "ok": self.ok,
            "predictions": self.predictions
            and {
                "output": self.predictions.output,
                "predicted": self.predictions.predicted.tolist(),
                "label": self.predictions.label.tolist(),
                "accuracy": self.predictions.accuracy,
            },
            "upload_s": self.upload_s,
            "upload_bytes": self.upload_bytes,
            "latency": {
                "n": len(timing.samples),
                "median_ms": timing.median * 1e3,
                "p95_ms": timing.p95 * 1e3,
                "mad_ms": timing.mad * 1e3,
                "samples": [sample * 1e3 for sample in timing.samples],
                "verdict": timing.verdict,
            },
            "instructions": self.instructions,
            "layers": [_layer(layer) for layer in self.layers],
            "runtime_version": device.runtime,
        }


def compiled_record(model: CompiledModel, name: str = "") -> dict[str, Any]:
    """The record of a model that was compiled only."""
    absent = ("board", "inputs", "outputs", "reference", "ok", "predictions", "upload_s",
              "upload_bytes", "latency", "instructions", "runtime_version")  # fmt: skip
    return {
        "model": name or model.name,
        "target": str(model.target),
        "compile_s": model.seconds,
        "object_bytes": len(model.object_bytes),
        "weights_bytes": len(model.weights_bytes),
        "arena_bytes": arena_bytes(model),
        "layers": [_layer(layer) for layer in layers_of(model)],
    } | dict.fromkeys(absent)


def deploy(
    model: CompiledModel,
    board: Session,
    inputs: Mapping[str, Array] | None = None,
    *,
    expect: Mapping[str, Array] | None = None,
    labels: Array | None = None,
    timeout: float = RUN_SECONDS,
    stage: Stage = nullcontext,
) -> Deployment:
    """Sends the model, runs it, compares its outputs with the reference, and times it.

    Inputs that are not given are drawn from a seed. `expect` stands for the reference of the
    outputs that it names; `labels` are held against the largest along an output's last axis.
    `timeout`: seconds that a run may take. stage(name) is entered around each step.

    Outputs that are wrong raise nothing: `ok` says so. Raises DeployError, InputError, RpcError.
    """
    refuse_unfit(model.target, board.board, board.device)
    given = fitting("input", inputs or {}, {p.name: p.type for p in model.reference.params})
    expected = fitting("output", expect or {}, dict(model.program.outputs))
    every = {p.name: given[p.name] if p.name in given else draw(model.reference, p.name)
             for p in model.reference.params}  # fmt: skip
    asked = [name for name, _ in model.program.outputs if name not in expected]
    if asked:
        with stage("reference"):
            computed = evaluate(model.reference, every)
        expected |= {name: computed[name] for name in asked}
    with stage("upload"):
        began, sent = time.perf_counter(), board.sent_bytes
        module = board.load(model)
        tensors = [board.tensor(every[name]) for name, _ in model.program.inputs]
        results = [board.empty(_shape(t), t.dtype) for _, t in model.program.outputs]
        upload = time.perf_counter() - began, board.sent_bytes - sent
    args = (*tensors, *results)
    with stage("run"):
        first = module.entry.profile(*args, timeout=timeout)
        names = [name for name, _ in model.program.outputs]
        outputs = {n: tensor.numpy() for n, tensor in zip(names, results, strict=True)}
    if board.emulated:
        runs, timing = [first], _as_timing(first)
    else:
        seconds = sum(first.nanoseconds) / 1e9
        repeat = min(max(round(TIMING_SECONDS / max(seconds, 1e-9)), SAMPLES[0]), SAMPLES[1])
        with stage("timing"):
            evaluator = module.entry.time_evaluator(
                number=1, repeat=repeat, min_repeat_ms=SAMPLE_MS, timeout=timeout * (repeat + 1)
            )
            timing = evaluator(*args)
            runs = [module.entry.profile(*args, timeout=timeout) for _ in range(repeat)]
    sources = {"evaluate" if name in asked else "given" for name in outputs}
    return Deployment(
        model=model,
        url=board.board,
        device=board.device,
        emulated=board.emulated,
        inputs=every,
        drawn=frozenset(every) - frozenset(given),
        outputs=outputs,
        checks={name: compare(outputs[name], expected[name]) for name in outputs},
        reference=", ".join(sorted(sources)),
        predictions=None if labels is None else predict(outputs, labels),
        layers=_measured(layers_of(model), runs),
        timing=timing,
        upload_s=upload[0],
        upload_bytes=upload[1],
    )


def refuse_unfit(target: Target, url: str, device: Device) -> None:
    """Raises DeployError when the board cannot run the target's code, naming what it lacks."""
    if target.arch != device.machine:
        raise DeployError(
            f"the board runs programs for {device.machine}, and the target is {target.arch}",
            where=f"{url}, for the target {target.short_name}",
            mend="another board, or no target: then the board says what it is",
        )
    lacks = sorted(set(target.required_features) - device.features)
    if lacks:
        raise DeployError(
            f"the board lacks {', '.join(lacks)}, which code for the target needs",
            where=f"{url} ({cpu_model(device)}), for the target {target.short_name}",
            mend="another board, or no target: then the board says what it has",
        )


def fitting(
    kind: str, given: Mapping[str, Array], types: Mapping[str, TensorType]
) -> dict[str, Array]:
    """The arrays, held against the names, shapes and dtypes of the model. Raises InputError."""
    for name, array in given.items():
        if name not in types:
            near = get_close_matches(name, types, 3, 0.5) or list(types)[:5]
            raise InputError(
                f"the model has no {kind} '{name}'", mend=", ".join(near) or "none: it takes none"
            )
        wanted = types[name]
        if array.shape != _shape(wanted) or array.dtype.name != wanted.dtype:
            raise InputError(
                f"{kind} '{name}' is {wanted}, and the array given is "
                f"{array.dtype.name}{list(array.shape)}",
                mend="astype and reshape of numpy",
            )
    return dict(given)


def predict(outputs: Mapping[str, Array], labels: Array) -> Predictions | None:
    """Of the first output with one row per label; None where there is none."""
    for name, output in outputs.items():
        if output.ndim > 0 and output.shape[:-1] == labels.shape:
            return Predictions(name, output.argmax(-1), labels)
    return None


def layers_of(model: CompiledModel) -> tuple[Layer, ...]:
    """The calls of the model, not measured."""
    results = {
        kernel["name"]: next(p for p in kernel["params"] if p["output"])
        for kernel in metadata(model.library)["kernels"]
    }
    return tuple(
        Layer(c.layer, c.kernel, tuple(results[c.kernel]["shape"]), results[c.kernel]["dtype"])
        for c in model.program.calls
    )


def arena_bytes(model: CompiledModel) -> int:
    """Intermediate tensors, and the largest workspace of a kernel."""
    workspaces = [kernel["workspace"] for kernel in metadata(model.library)["kernels"]]
    return model.program.arena + max(workspaces, default=0)


def cpu_model(device: Device) -> str:
    """The board's kinds of cores, in the board's order."""
    return ", ".join(dict.fromkeys(cpu.model or "unknown" for cpu in device.cpus)) or "unknown"


def _measured(layers: Sequence[Layer], runs: Sequence[Run]) -> tuple[Layer, ...]:
    counts = runs[0].counts
    return tuple(
        Layer(
            layer.name,
            layer.kernel,
            layer.shape,
            layer.dtype,
            statistics.median(run.nanoseconds[n] for run in runs) / 1e3,
            None if counts is None else counts[n].by_class,
        )
        for n, layer in enumerate(layers)
    )


def _as_timing(run: Run) -> Timing:
    from mlc_rpc import Timing

    return Timing((sum(run.nanoseconds) / 1e9,), (1,), emulated=True)


def _shape(t: TensorType) -> tuple[int, ...]:
    return tuple(extent for extent in t.shape if isinstance(extent, int))


def _tensor(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kernel": layer.kernel,
        "shape": list(layer.shape),
        "dtype": layer.dtype,
        "median_us": layer.median_us,
        "instructions": layer.instructions,
        "by_class": None if layer.by_class is None else dict(layer.by_class),
    }


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None
