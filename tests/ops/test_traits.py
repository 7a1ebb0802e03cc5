"""Every trait of every operator, held against what the operator computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlc_deploy.ops import OPERATORS, OWN_OPERATORS, evaluate, has, operator

SHAPE = (2, 3, 4, 5)
# Attributes and further arguments of operators that need some, for data of SHAPE.
ATTRS: dict[str, dict[str, Any]] = {
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "reshape": {"shape": (6, 20)},
    "transpose": {"axes": (0, 2, 3, 1)},
    "broadcast_to": {"shape": (7, *SHAPE)},
    "tile": {"reps": (1, 2, 1, 3)},
    "repeat": {"axis": 2, "times": 3},
    "depth_to_space": {"block": (3,)},
    "slice": {"begin": (0, 2, 1, 4), "step": (1, -1, 2, -2), "shape": (2, 3, 2, 2)},
    "pad": {"pads": (0, 1, 2, 0, 1, 0, 3, 1), "mode": "constant", "value": 3},
    "concatenate": {"axis": 1},
    "softmax": {"axis": 2},
    "fast_softmax": {"axis": 2},
    "log_softmax": {"axis": -2 % len(SHAPE)},
    "clip": {"min": -3, "max": 4},
}
WINDOW = {"kernel": (2, 3), "strides": (1, 2), "dilations": (1, 1), "pads": (1, 0, 0, 1)}
ATTRS["max_pool"] = ATTRS["sum_pool"] = {**WINDOW, "ceil_mode": False}
ATTRS["avg_pool"] = {**WINDOW, "ceil_mode": False, "count_include_pad": True}
REDUCED: dict[str, Any] = {"axes": (1, 3), "keepdims": False}
AXES = ((0, 2, 3, 1), (3, 1, 0, 2), (1, 0, 3, 2))
BOOL = ("logical_not",)


def named(trait: str) -> list[str]:
    return [name for name in sorted(OWN_OPERATORS) if trait in OPERATORS[name].traits]


def attrs_of(op: str) -> dict[str, Any]:
    return REDUCED if has(op, "reduces") else ATTRS.get(op, {})


def data(seed: int, dtype: str = "float32") -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return (rng.integers(-9, 10, SHAPE) / (2 if dtype == "float32" else 1)).astype(dtype)


@pytest.mark.parametrize("op", named("own_inverse"))
def test_twice_is_nothing(op: str) -> None:
    x = data(0) > 0 if op in BOOL else data(0)
    (once,) = evaluate(op, [x], {})
    np.testing.assert_array_equal(evaluate(op, [once], {})[0], x)


@pytest.mark.parametrize("op", named("idempotent"))
def test_twice_is_once(op: str) -> None:
    (once,) = evaluate(op, [data(1)], {})
    np.testing.assert_array_equal(evaluate(op, [once], {})[0], once)


@pytest.mark.parametrize("op", named("not_negative"))
def test_results_are_not_negative(op: str) -> None:
    x = np.abs(data(2)) if op == "sqrt" else data(2)
    assert (evaluate(op, [x], attrs_of(op))[0] >= 0).all()


@pytest.mark.parametrize("op", named("selects"))
def test_what_selects_goes_before_a_sum(op: str) -> None:
    """f(x + c) = f(x) + c"""
    count = 2 if op in ("concatenate", "minimum", "maximum") else 1
    args = [data(3 + n, "int32") for n in range(count)]
    attrs = attrs_of(op)
    shifted = {k: v + 7 if k in operator(op).numbers else v for k, v in attrs.items()}
    (plain,) = evaluate(op, args, attrs)
    np.testing.assert_array_equal(evaluate(op, [a + 7 for a in args], shifted)[0], plain + 7)


@pytest.mark.parametrize("op", named("moves"))
def test_what_moves_computes_nothing(op: str) -> None:
    """f(g(x)) = g(f(x)) for every function g of a number"""
    x = data(4)
    assert has(op, "selects")
    (moved,) = evaluate(op, [x], attrs_of(op))
    np.testing.assert_array_equal(evaluate(op, [np.cos(x)], attrs_of(op))[0], np.cos(moved))


@pytest.mark.parametrize("op", named("by_channel"))
def test_channels_are_apart(op: str) -> None:
    x = data(5, "int8") if op == "lookup" else data(5)
    more = [np.arange(256, dtype=np.uint8)] if op == "lookup" else []
    (whole,) = evaluate(op, [x, *more], attrs_of(op))
    for c in range(SHAPE[1]):
        (one,) = evaluate(op, [x[:, c : c + 1], *more], attrs_of(op))
        np.testing.assert_array_equal(whole[:, c : c + 1], one)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("op", [n for n in sorted(OWN_OPERATORS) if OPERATORS[n].turned])
def test_what_goes_before_a_transpose(op: str, keepdims: bool, axes: tuple[int, ...]) -> None:
    """f(transpose(x, axes), attrs) = transpose(f(x, attrs'), axes')"""
    attrs = {**attrs_of(op), "keepdims": keepdims} if has(op, "reduces") else attrs_of(op)
    x = data(6)
    turned = np.ascontiguousarray(x.transpose(axes))
    if op == "slice":
        shape = tuple(min(n, 2) for n in turned.shape)
        attrs = {"begin": (1, 0, 0, 0), "step": (-1, 1, 1, 1), "shape": shape}
    turn = operator(op).turned
    assert turn is not None
    before, after = turn(attrs, axes)
    (behind,) = evaluate(op, [turned], attrs)
    (made,) = evaluate(op, [x], before)
    np.testing.assert_allclose(made.transpose(tuple(after)), behind, rtol=1e-6)


@pytest.mark.parametrize("op", [n for n in sorted(OWN_OPERATORS) if OPERATORS[n].output_axes])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_outputs_are_where_the_axes_say(op: str, transpose_b: bool) -> None:
    """One output's weights zero: its results are zero, and no others."""
    rng = np.random.default_rng(7)
    conv = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    cases: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "conv2d": ((2, 3, 4, 5), (6, 3, 2, 2), conv),
        "conv_nd": ((2, 3, 4, 5), (6, 3, 2, 2), conv),
        "dense": ((2, 3), (6, 3) if transpose_b else (3, 6), {"transpose_b": transpose_b}),
        "matmul": (
            (2, 4, 3),
            (2, 6, 3) if transpose_b else (2, 3, 6),
            {"transpose_b": transpose_b},
        ),
    }
    x_shape, w_shape, attrs = cases[op]
    x, w = (rng.uniform(1, 2, shape).astype(np.float32) for shape in (x_shape, w_shape))
    axes = operator(op).output_axes
    assert axes is not None
    of_weights, of_result = axes(attrs, len(w_shape), len(x_shape))
    np.moveaxis(w, of_weights, 0)[4] = 0
    (result,) = evaluate(op, [x, w], attrs)
    by_output = np.moveaxis(result, of_result, 0)
    assert len(by_output) == 6
    assert [bool(o.any()) for o in by_output] == [True, True, True, True, False, True]
