"""Small models of each operator that addresses memory by run-time values, and hostile inputs of
them: indices beyond every integer's range, floats that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from mlc_deploy.frontend.onnx import from_onnx
from mlc_deploy.graph import BlockBuilder, Function
from tests.onnx_models import one_node
from tests.ops.operator_calls import Array, array

Inputs = dict[str, Array]
Draw = Callable[[Random, tuple[int, ...], str], Array]
TWO31, TWO32, TWO63 = 1 << 31, 1 << 32, 1 << 63
WILD = (
    TWO31, -TWO31, TWO31 - 1, -TWO31 - 1, TWO32, -TWO32, TWO32 + 1, TWO32 - 1, 1 - TWO32,
    TWO63 - 1, -TWO63, 1 - TWO63, TWO63 - TWO31, 1 << 62, -(1 << 40),
)  # fmt: skip
WILD_FLOATS = (
    math.nan, math.inf, -math.inf, 3e38, -3e38, 1e30, -1e10, 2.0**31, -(2.0**31), 2.0**63,
    -(2.0**32) - 512, 1e-40, -0.0,
)  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    """A model of an operator, or of ONNX's nodes where `op` is one of theirs.

    draws: of each input. compared: whether its outputs are compared, by the inputs. Where NaN is
    among numbers to be ordered, products overflow, or what counts as zero depends on the machine,
    memory alone is looked at.
    """

    name: str
    op: str
    function: Function
    draws: Mapping[str, Draw]
    compared: Callable[[Inputs], bool] = field(default=lambda inputs: True)

    def inputs(self, number: int) -> Inputs:
        rng = Random(f"{self.name} {number}")
        return {
            p.name: self.draws[p.name](rng, p.type.sizes, p.type.dtype)
            for p in self.function.params
        }


def no_denormals(inputs: Inputs) -> bool:
    """32-bit ARM takes them for zeros."""
    sizes = [np.abs(x) for x in inputs.values() if x.dtype.kind == "f"]
    return not any(((x > 0) & (x < np.finfo(x.dtype).tiny)).any() for x in sizes)


# ----------------------------------------------------------------------------------------- values


def numbers(rng: Random, shape: tuple[int, ...], dtype: str) -> Array:
    return np.asarray(array(rng, shape, dtype))


def index(*extents: int, from_end: bool = True) -> Draw:
    """Indices of axes: one extent for all, or one for each element of the last dimension. Some
    inputs have none that is wrong, some have one, and some have many."""

    def draw(rng: Random, shape: tuple[int, ...], dtype: str) -> Array:
        count, share = math.prod(shape), rng.choice((0.0, 0.0, 0.5, 1.0))
        alone = rng.randrange(count) if rng.random() < 0.4 else -1
        info = np.iinfo(dtype)
        found: list[int] = []
        for n in range(count):
            extent = extents[n % len(extents)]
            value = rng.randrange(-extent if from_end else 0, extent)
            if n == alone or rng.random() < share:
                near = (extent, extent + 1, -extent - 1, -1, 2 * extent, -TWO32 - 1)
                value = rng.choice((*WILD, *near, rng.randrange(-TWO63, TWO63)))
            found.append(min(max(value, int(info.min)), int(info.max)))
        return np.array(found, dtype).reshape(shape)

    return draw


def floats(low: float, high: float) -> Draw:
    """Floats, of which some, or one, are no numbers or leave every range."""

    def draw(rng: Random, shape: tuple[int, ...], dtype: str) -> Array:
        share = rng.choice((0.0, 0.1, 0.5, 1.0))
        found = [
            rng.choice(WILD_FLOATS) if rng.random() < share else rng.uniform(low, high)
            for _ in range(math.prod(shape))
        ]
        with np.errstate(over="ignore"):
            return np.array(found, dtype).reshape(shape)

    return draw


def ordered(inputs: Inputs) -> bool:
    return not any(a.dtype.kind == "f" and np.isnan(a).any() for a in inputs.values())


# ----------------------------------------------------------------------------------------- models


def of_operator(
    name: str, op: str, params: Sequence[tuple[tuple[int, ...], str, Draw]],
    compared: Callable[[Inputs], bool] = lambda inputs: True,
    **attrs: Any,
) -> Hostile:  # fmt: skip
    builder = BlockBuilder("main")
    given = [builder.param(f"p{n}", shape, dtype) for n, (shape, dtype, _) in enumerate(params)]
    made = builder.emit(op, *given, **attrs)
    results = list(made) if isinstance(made, tuple) else [made]
    names = [f"out{n}" for n in range(len(results))]
    draws = {p.name: draw for p, (_, _, draw) in zip(given, params, strict=True)}
    return Hostile(name, op, builder.finish(results, names), draws, compared)


def of_onnx(
    name: str, op: str, inputs: Mapping[str, tuple[Array, Draw]],
    compared: Callable[[Inputs], bool] = lambda inputs: True, **options: Any,
) -> Hostile:  # fmt: skip
    """inputs: an array of each one's type, which is its value if it is among `constants`."""
    model = one_node(op, {k: a for k, (a, _) in inputs.items()}, opset=18, **options)
    draws = {k: draw for k, (_, draw) in inputs.items()}
    return Hostile(name, op, from_onnx(model), draws, compared)


X = (4, 3)
DATA = ((4, 3), "float32", numbers)


def _operators() -> list[Hostile]:
    found = []
    for kind in ("int64", "int32"):
        along = ((4, 2), kind, index(4))
        pairs = ((5, 2), kind, index(4, 3))
        found += [
            of_operator(f"gather_{kind}", "gather", [DATA, ((2, 3), kind, index(4))], axis=0),
            of_operator(f"gather_last_{kind}", "gather", [DATA, ((5,), kind, index(3))], axis=1),
            of_operator(f"gather_elements_{kind}", "gather_elements", [DATA, along], axis=0),
            of_operator(f"gather_nd_{kind}", "gather_nd", [DATA, pairs], batch_dims=0),
            of_operator(
                f"scatter_elements_{kind}", "scatter_elements",
                [DATA, along, ((4, 2), "float32", numbers)], axis=0, reduction="none",
            ),
            of_operator(
                f"scatter_nd_{kind}", "scatter_nd", [DATA, pairs, ((5,), "float32", numbers)],
                reduction="max",
            ),
            of_operator(
                f"check_indices_{kind}", "check_indices", [((3, 2), kind, index(4, 3))],
                extents=(4, 3), from_end=True,
            ),
        ]  # fmt: skip
    for kind in ("uint64", "uint32", "uint8", "int8"):
        below = [((7,), kind, index(5, from_end=False))]
        found.append(of_operator(f"gather_{kind}", "gather", [DATA, *below], axis=0))
        found.append(
            of_operator(
                f"check_indices_{kind}", "check_indices", below, extents=(5,), from_end=False
            )
        )
    rows = ((2, 3, 4), "float32", numbers)
    cache, kept = ((2, 8, 4), "float32", numbers), ((), "int64", index(8, from_end=False))
    found += [
        of_operator("append_rows", "append_rows", [cache, rows, kept], owned=False),
        of_operator("append_rows_moved", "append_rows", [cache, rows, kept, kept], owned=False),
        of_operator(
            "resample", "resample",
            [DATA, ((5, 2), "int32", index(4, from_end=False)), ((5, 2), "float32", numbers)],
            axis=0,
        ),
        of_operator(
            "find", "find", [((9,), "float32", floats(-3, 3)), ((5,), "float32", floats(-3, 3))],
            lambda inputs: ordered(inputs) and bool((inputs["p1"][1:] >= inputs["p1"][:-1]).all()),
        ),
        of_operator(
            "nonzero", "nonzero", [((3, 5), "float32", floats(-1, 1))], compared=no_denormals
        ),
        of_operator("unique", "unique", [((9, 2), "float32", floats(0, 2))], ordered, sorted=True),
        of_operator(
            "top_k", "top_k", [((3, 9), "float32", floats(-2, 2))], ordered,
            axis=1, k=4, largest=True,
        ),
        of_operator(
            "suppress", "suppress",
            [
                ((2, 9, 4), "float32", floats(0, 2)), ((2, 2, 9), "float32", floats(0, 1)),
                ((), "int64", index(9, from_end=False)), ((), "float32", floats(0, 1)),
                ((), "float32", floats(0, 1)),
            ],
            lambda inputs: all((np.abs(inputs[f"p{n}"]) < 1e9).all() for n in (0, 1, 3, 4)),
            centered=False, most=11,
        ),
        of_operator(
            "draw_token", "draw_token",
            [
                ((40,), "float32", floats(-3, 3)), ((), "float32", floats(0.1, 2)),
                ((), "int64", index(40)), ((), "float32", floats(0, 1)),
                ((), "float64", floats(0, 1)),
            ],
            lambda inputs: False,  # its rounding is test_draw.py's; here it stays in its memory
        ),
        of_operator(  # a bias that is -inf says which keys are read
            "attention", "attention",
            [
                ((1, 2, 3, 8), "float32", numbers), ((1, 2, 7, 8), "float32", numbers),
                ((1, 2, 7, 8), "float32", numbers), ((1, 1, 3, 7), "float32", floats(-2, 2)),
            ],
            lambda inputs: bool((np.abs(inputs["p3"]) < 1e9).all()), scale=0.3, causal=True,
        ),
        of_operator(
            "lookup", "lookup", [((3, 5), "int8", numbers), ((256,), "int8", numbers)]
        ),
    ]  # fmt: skip
    image, of = ((2, 1, 3, 4), "float32", numbers), ((3,), "int64", index(2))
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            attrs: dict[str, Any] = {
                "mode": mode,
                "padding": padding,
                "corners": padding == "border",
            }
            place = ((3, 5, 2), "float32", floats(-2, 5))
            found.append(
                of_operator(f"sample_{mode}_{padding}", "sample", [image, place, of], **attrs)
            )
    return found


def _nodes() -> list[Hostile]:
    """ONNX's nodes whose standard refuses an index, or gives it a value."""
    x = np.zeros(X, np.float32), numbers
    pixels = np.zeros((2, 1, 4, 4), np.float32), numbers
    one_hot = {
        "i": (np.zeros(3, np.int64), index(4)), "depth": (np.array(4), numbers),
        "values": (np.array([0, 1], np.float32), numbers),
    }  # fmt: skip
    weights = {
        "w": (np.ones((1, 4, 2), np.float32), numbers),
        "r": (np.ones((1, 4, 4), np.float32), numbers),
        "b": (np.zeros((1, 8), np.float32), numbers),
    }  # fmt: skip
    return [
        of_onnx("onnx_gather", "Gather", {"x": x, "i": (np.zeros(3, np.int64), index(4))}),
        of_onnx(
            "onnx_gather_elements", "GatherElements",
            {"x": x, "i": (np.zeros((2, 3), np.int64), index(4))},
        ),
        of_onnx(
            "onnx_gather_nd", "GatherND", {"x": x, "i": (np.zeros((3, 2), np.int64), index(4, 3))}
        ),
        of_onnx(
            "onnx_scatter_elements", "ScatterElements",
            {"x": x, "i": (np.zeros((2, 3), np.int64), index(4)),
             "u": (np.zeros((2, 3), np.float32), numbers)},
            reduction="add",
        ),
        of_onnx(
            "onnx_scatter_nd", "ScatterND",
            {"x": x, "i": (np.zeros((2, 1), np.int64), index(4)),
             "u": (np.zeros((2, 3), np.float32), numbers)},
            reduction="add",
        ),
        of_onnx("onnx_one_hot", "OneHot", one_hot, constants=("depth", "values")),
        of_onnx(
            "onnx_features", "ArrayFeatureExtractor",
            {"x": x, "i": (np.zeros(2, np.int64), index(3, from_end=False))}, domain="ai.onnx.ml",
        ),
        of_onnx(
            "onnx_reverse", "ReverseSequence",
            {"x": x, "n": (np.zeros(3, np.int64), index(5, from_end=False))},
            batch_axis=1, time_axis=0,
        ),
        of_onnx(
            "onnx_rnn", "RNN",
            {"x": (np.zeros((3, 1, 2), np.float32), numbers), **weights,
             "n": (np.zeros(1, np.int32), index(4, from_end=False))},
            constants=tuple(weights), hidden_size=4,
        ),
        of_onnx(
            "onnx_roi_align", "RoiAlign",
            {"x": pixels, "rois": (np.zeros((2, 4), np.float32), floats(-1, 5)),
             "of": (np.zeros(2, np.int64), index(2, from_end=False))},
            output_height=2, output_width=2, sampling_ratio=2,
        ),
        of_onnx(
            "onnx_max_unpool", "MaxUnpool",
            {"x": (np.zeros((1, 1, 2, 2), np.float32), numbers),
             "i": (np.zeros((1, 1, 2, 2), np.int64), index(16, from_end=False))},
            kernel_shape=[2, 2], strides=[2, 2],
        ),
        of_onnx("onnx_trilu", "Trilu", {"x": x, "k": (np.array(0), index(3))}),
        of_onnx(
            "onnx_grid_sample", "GridSample",
            {"x": pixels, "grid": (np.zeros((2, 3, 3, 2), np.float32), floats(-1, 1))},
            mode="nearest",
        ),
    ]  # fmt: skip


def cases() -> dict[str, Hostile]:
    return {case.name: case for case in (*_operators(), *_nodes())}
