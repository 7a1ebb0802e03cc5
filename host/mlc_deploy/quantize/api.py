"""`quantize`: a float model and data to calibrate with become a quantized model.

    made = mlc.quantize("model.onnx", "calib/", target="raspberry-pi/4b-aarch64", max_drop=0.5)
    made.save("model.int8.onnx")

The steps: read and prepare the model, calibrate, mend (equalization, biases), return layers to
floats that cost less so or break the budget, write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto

from mlc_rpc import Unreachable
from mlc_targets import Target

from ..driver.linked import FileName
from ..errors import CostsMore, InputError, QuantizeError
from ..files.unfinished import replacing
from ..frontend.onnx_node import Converter
from .agreement import Judge, judge
from .calibrate import Calibration, Miss, calibrate, corrected_biases, equalized, misses
from .costs import Costs, counted, meter, within_cost
from .data import Data, Source, samples_of
from .dynamic import dynamic
from .insert import in_integers
from .net import Array, Net
from .prepare import PER_CHANNEL_OPSET, prepare, read
from .run import Sample, run
from .search import PROBED, within_budget
from .weights import BLOCKS_OPSET, narrow_weights

Stage = Callable[[str], AbstractContextManager[object]]

STATIC, DYNAMIC = "static", "dynamic"
NARROW = {"int8-weights": 8, "int4-weights": 4}
SCHEMES = (STATIC, DYNAMIC, *NARROW)
MAX_DROP = 0.5  # percent
SAMPLES = 64  # runs of the calibration data, at most
COST_ROUNDS = 3  # of costs and budget in turn, or until the choice stays the same


@dataclass(frozen=True)
class LayerReport:
    """One layer. bits: of its weights (32: float). error: the relative error of its result if only
    it is quantized. before, after: executed instructions. None: unknown. rule: the one of
    ranges.RULES that gave its input's range."""

    name: str
    operator: str
    bits: int
    error: float | None = None
    before: int | None = None
    after: int | None = None
    reason: str = ""  # why it is float
    rule: str = ""


@dataclass(frozen=True)
class Quantized:
    """A quantized model, and its figures. before, after: the scores of the float model and
    of this one by `measure`, in percent. costs: executed instructions before and after."""

    model: ModelProto
    scheme: str
    layers: tuple[LayerReport, ...]
    measure: str = ""
    runs: int = 0
    before: float | None = None
    after: float | None = None
    costs: tuple[int, int] | None = None
    target: str | None = None
    max_drop: float = MAX_DROP
    preprocess: str | None = None
    mended: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def save(self, path: str | Path) -> Path:
        """Writes the ONNX file. Raises OSError."""
        path = Path(path)
        with replacing(path) as part:
            part.write_bytes(self.model.SerializeToString())
        return path

    def record(self) -> dict[str, Any]:
        """Everything but the model, for JSON."""
        costs = self.costs or (None, None)
        return {
            "scheme": self.scheme, "target": self.target, "max_drop": self.max_drop,
            "preprocess": self.preprocess, "runs": self.runs, "measure": self.measure,
            "before": self.before, "after": self.after,
            "instructions_before": costs[0], "instructions_after": costs[1],
            "mended": list(self.mended), "notes": list(self.notes),
            "layers": [
                {"name": layer.name, "operator": layer.operator, "bits": layer.bits,
                 "error": layer.error, "instructions_before": layer.before,
                 "instructions_after": layer.after, "reason": layer.reason, "range": layer.rule}
                for layer in self.layers
            ],
        }  # fmt: skip


def quantize(
    model: str | Path | bytes | ModelProto,
    data: Source | None = None,
    *,
    target: Target | str | None = None,
    max_drop: float = MAX_DROP,
    labels: Array | Sequence[int] | None = None,
    preprocess: str | None = None,
    scheme: str = STATIC,
    samples: int = SAMPLES,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    metric: str | None = None,
    matmul_nbits: bool = False,
    values: Mapping[str, Any] | None = None,
    converters: Mapping[str, Converter] | None = None,
    link: Sequence[FileName] = (),
    stage: Stage | None = None,
) -> Quantized:
    """The quantized model.

    data: arrays by input name, an .npy or .npz file, a folder of either or of images (which
    preprocess describes), "file.py:function", or an iterable of runs. The scheme "static" needs
    data; others keep the budget if they get data. max_drop: the percent of accuracy (labels: the
    right classes), or of agreement with the float model, that may be lost. target: layers that
    execute more instructions in int8 there stay float. samples: the most runs to take. metric: one
    of agreement.KINDS, instead of the kind found from the outputs. matmul_nbits: write blocks of
    weights as MatMulNBits, not DequantizeLinear. values, converters and link: as `compile` takes
    them. Raises QuantizeError if no layer can be int8, CostsMore if only the target's costs are the
    reason, ImporterError, InputError.
    """
    stage = stage or (lambda _: nullcontext())
    if scheme not in SCHEMES:
        raise QuantizeError(f"there is no scheme '{scheme}'", mend=f"one of {', '.join(SCHEMES)}")
    blocks = scheme in NARROW and not matmul_nbits
    with stage("read"):
        opset = BLOCKS_OPSET if blocks else PER_CHANNEL_OPSET
        source = read(model, opset, values, shapes, converters)
        net = prepare(source)
    if not net.layers:
        raise _no_layers(net)
    given = Data()
    if data is not None:
        right = None if labels is None else np.asarray(labels)
        given = samples_of(net, data, preprocess, samples, shapes or {}, dims or {}, right)
    elif scheme == STATIC:
        raise _no_data(net)
    elif labels is not None or preprocess is not None:
        raise InputError("labels and preprocess have no effect without data", mend="--data")
    work = _Work(source, net, given, max_drop, metric, link, stage)
    if scheme == STATIC:
        made = work.static(None if target is None else Target(target))
    else:
        made = work.without_ranges(scheme, matmul_nbits)
    text = given.preprocess
    return replace(made, preprocess=text, model=_described(made, text))


INTEGERS = ("DequantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")


def _no_layers(net: Net) -> QuantizeError:
    if any(node.op_type in INTEGERS for node in net.nodes):
        return QuantizeError(
            "the model is quantized already",
            mend="the model as it is, or the float model that it was made from",
        )
    return QuantizeError(
        "the model has no layer that could be int8",
        mend="a model with Conv, Gemm or MatMul of constant float32 weights outside of If, Loop "
        "and Scan",
    )


def _no_data(net: Net) -> InputError:
    def shape(i: ValueInfoProto) -> str:
        dims = i.type.tensor_type.shape.dim
        return ", ".join(d.dim_param or str(d.dim_value or "?") for d in dims)

    inputs = "; ".join(f"'{i.name}' [{shape(i)}]" for i in net.inputs)
    return InputError(
        f"int8 needs calibration data: a few hundred representative inputs of {inputs}",
        mend="--data with an .npy or .npz file, a folder of those, a folder of images with "
        "--preprocess, or FILE.py:FUNCTION that yields samples",
    )


def _described(made: Quantized, preprocess: str | None) -> ModelProto:
    """The model with scheme and preprocessing in its metadata."""
    entries = {"mlc.quantize.scheme": made.scheme, "mlc.quantize.preprocess": preprocess or ""}
    for key, value in entries.items():
        if value:
            entry = made.model.metadata_props.add()
            entry.key, entry.value = key, value
    return made.model


@dataclass
class _Work:
    """The quantization of one model. source: the model as read; net: the prepared one."""

    source: Net
    net: Net
    data: Data
    max_drop: float
    metric: str | None
    link: Sequence[FileName]
    stage: Stage

    @property
    def runs(self) -> Sequence[Sample]:
        return self.data.runs

    def judge(self, outputs: Sequence[Sample]) -> Judge:
        try:
            return judge(outputs, self.data.labels, self.metric)
        except ValueError as error:
            raise InputError(
                f"the labels do not fit: {error}",
                mend="the correct class of each row of an output, in the order of the data; files "
                "of a folder are in the order of their names",
            ) from None

    # ------------------------------------------------------------------------------- static

    def static(self, target: Target | None) -> Quantized:
        with self.stage("calibrate"):
            base = calibrate(self.net, self.runs)
            ruler = self.judge(base.outputs)
        before = ruler.score(base.outputs)
        notes = list(ruler.doubts(before))
        with self.stage("mend"):
            net, known, missed, biases, mended = self._mended(base, ruler)

        def form(chosen: Collection[str]) -> Net:
            return in_integers(net, chosen, known.ranges, biases)

        chosen = frozenset(layer.name for layer in net.layers)
        least = before - self.max_drop / 100
        reasons: dict[str, str] = {}
        sensitivity: Mapping[str, float] = {}
        float_costs = costs = None
        measure = None
        if target is not None:
            try:
                if not counted(target):
                    raise Unreachable(f"QEMU counts no instructions of {target.arch}")
                measure = meter(target, self.runs[0], self.link)
            except Unreachable as error:
                notes.append(f"costs on {target.short_name} are not known: {error.what}")
        with closing(measure.session) if measure else nullcontext():
            if measure:
                with self.stage("costs"):
                    float_costs = measure(self.source)
            for _ in range(COST_ROUNDS):
                if measure and float_costs:
                    with self.stage("costs"):
                        cheap, costs = within_cost(net, form, measure, float_costs, chosen)
                    if cheap and costs.total > float_costs.total:
                        cheap = frozenset()
                    reasons |= dict.fromkeys(chosen - cheap, "costs more as int8")
                    chosen = cheap
                with self.stage("budget"):
                    found = within_budget(form, chosen, self.runs, ruler, least, sensitivity)
                sensitivity = found.sensitivity
                reasons |= dict.fromkeys(chosen - found.chosen, "breaks the budget")
                if found.chosen == chosen or not found.chosen:
                    break
                chosen = found.chosen
            else:
                if measure and float_costs:
                    costs = measure(form(found.chosen))
        chosen = found.chosen
        if not chosen or (costs and float_costs and costs.total > float_costs.total):
            raise self._refusal(reasons, sensitivity, target)
        return Quantized(
            model=form(chosen).proto(),
            scheme=STATIC,
            layers=self._layers(net, known, missed, chosen, reasons, float_costs, costs),
            measure=ruler.measure,
            runs=len(self.runs),
            before=100 * before,
            after=100 * found.score,
            costs=(float_costs.total, costs.total) if float_costs and costs else None,
            target=str(target) if target else None,
            max_drop=self.max_drop,
            mended=mended,
            notes=tuple(notes),
        )

    def _mended(
        self, base: Calibration, ruler: Judge
    ) -> tuple[Net, Calibration, dict[str, Miss], dict[str, Array], tuple[str, ...]]:
        """The net, its calibration, the errors of its layers, its corrected biases, and the names
        of these corrections. Of equalization and bias correction it takes those that give the least
        error with all layers in int8."""
        few = self.runs[:PROBED]
        probe = ruler.of_first(len(few))
        nets: dict[tuple[str, ...], tuple[Net, Calibration]] = {(): (self.net, base)}
        equal = equalized(self.net)
        if equal is not self.net:
            nets[("equalized",)] = (equal, calibrate(equal, self.runs))
        best = None
        for words, (net, known) in nets.items():
            names = [layer.name for layer in net.layers]
            missed = misses(net, known)
            corrected = corrected_biases(net, missed)
            for more, biases in (((), {}), (("biases corrected",), corrected)):
                if more and not biases:
                    continue
                made = in_integers(net, names, known.ranges, biases)
                error = probe.error(list(run(made, few)))
                if best is None or error < best[0]:
                    best = error, (net, known, missed, biases, (*words, *more))
        assert best is not None
        return best[1]

    def _refusal(
        self, reasons: Mapping[str, str], sensitivity: Mapping[str, float], target: Target | None
    ) -> QuantizeError:
        names = [layer.name for layer in self.net.layers if layer.name in reasons]
        words = {why: [n for n in names if reasons[n] == why] for why in reasons.values()}
        parts = []
        if target is not None and (costly := words.get("costs more as int8")):
            parts.append(f"int8 costs more on {target.short_name} than float32: {_some(costly)}")
        breaking = words.get("breaks the budget", [])
        if breaking:
            breaking.sort(key=lambda name: -sensitivity.get(name, 0))
            what = f"int8 loses more than {self.max_drop:g} %, most by {_some(breaking)}"
            parts.append(what)
        mend = "the float model as it is"
        mend += ", a larger --max-drop, or more calibration data" if len(breaking) else ""
        error = QuantizeError if breaking else CostsMore
        return error("no layer becomes int8; " + "; ".join(parts), mend=mend)

    def _layers(
        self,
        net: Net,
        known: Calibration,
        missed: Mapping[str, Miss],
        chosen: Collection[str],
        reasons: Mapping[str, str],
        before: Costs | None,
        after: Costs | None,
    ) -> tuple[LayerReport, ...]:
        was = before.of_layers(net) if before else {}
        now = after.of_layers(net, chosen) if after else {}
        return tuple(
            LayerReport(
                layer.name, layer.node.op_type, 8 if layer.name in chosen else 32,
                missed[layer.name].error, was.get(layer.name), now.get(layer.name),
                "" if layer.name in chosen else reasons.get(layer.name, ""),
                known.ranges[layer.data].rule if layer.name in chosen else "",
            )
            for layer in net.layers
        )  # fmt: skip

    # ------------------------------------------------------------------- weights, and dynamic

    def without_ranges(self, scheme: str, matmul_nbits: bool) -> Quantized:
        """Quantizes by a scheme that needs no data; with data, it keeps the budget."""
        bits = NARROW.get(scheme, 8)

        def form(chosen: Collection[str]) -> Net:
            if scheme == DYNAMIC:
                return dynamic(self.net, chosen)
            return narrow_weights(self.net, chosen, bits, matmul_nbits)

        fitting = [layer for layer in self.net.layers if layer.node.op_type != "Conv"]
        chosen = frozenset(layer.name for layer in fitting)
        if not chosen:
            raise QuantizeError(
                f"the scheme '{scheme}' is for MatMul and Gemm, and the model has none of constant "
                "float32 weights",
                mend=f"--scheme {STATIC}",
            )
        before = after = None
        measure, reasons = "", {}
        notes: tuple[str, ...] = ()
        if self.runs:
            with self.stage("float"):
                right = list(run(self.net, self.runs))
            ruler = self.judge(right)
            before, measure = 100 * ruler.score(right), ruler.measure
            notes = ruler.doubts(before / 100)
            with self.stage("budget"):
                found = within_budget(
                    form, chosen, self.runs, ruler, (before - self.max_drop) / 100
                )
            reasons = dict.fromkeys(chosen - found.chosen, "breaks the budget")
            chosen, after = found.chosen, 100 * found.score
            if not chosen:
                raise self._refusal(reasons, found.sensitivity, None)
        return Quantized(
            model=form(chosen).proto(),
            scheme=scheme,
            layers=tuple(
                LayerReport(
                    layer.name, layer.node.op_type, bits if layer.name in chosen else 32,
                    reason=reasons.get(layer.name, ""),
                )
                for layer in self.net.layers
            ),
            measure=measure,
            runs=len(self.runs),
            before=before,
            after=after,
            max_drop=self.max_drop,
            notes=notes,
        )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
