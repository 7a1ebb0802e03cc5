"""Every operator's tensor expression, interpreted, against its numpy definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlc_deploy.ir.interp import run
from mlc_deploy.ops import OPERATORS, TensorType, compute, evaluate, infer_types, operator
from mlc_deploy.ops.elementwise import TABLE, Elementwise
from mlc_deploy.te import create_prim_func, placeholder
from tests.ops import indexed_calls

Array = NDArray[Any]
few = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def check(op: str, arrays: Sequence[Array], **attrs: Any) -> None:
    """The interpreted expression, the numpy definition and the inferred types agree."""
    inputs = [placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
    outputs = compute(op, inputs, attrs)
    func = create_prim_func([*inputs, *outputs], op)
    found = [np.zeros([int(n) for n in t.shape], t.dtype) for t in outputs]  # type: ignore[arg-type]
    run(func, *(np.ascontiguousarray(a) for a in arrays), *found)
    expected = evaluate(op, arrays, attrs)
    types = infer_types(op, [TensorType(a.shape, str(a.dtype)) for a in arrays], attrs)
    for mine, theirs, t in zip(found, expected, types, strict=True):
        assert theirs.shape == t.shape and theirs.dtype == t.dtype
        tolerance = 4e-3 if mine.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)  # NaN equals NaN


SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 0.5, 1e-7)


def numbers(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    if dtype.startswith("float"):
        x = rng.normal(0, 2, tuple(shape)).astype(dtype)
        x[rng.random(x.shape) < 0.1] = SPECIALS[seed % len(SPECIALS)]
        return x
    low = 0 if dtype.startswith("u") else -9
    return rng.integers(low, 10, tuple(shape)).astype(dtype)


shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)
seeds = st.integers(0, 1000)
DTYPES = {
    "float": ("float32", "float64", "float16"),
    "int": ("int8", "int32", "int64"),
    "uint": ("uint8", "uint32"),
    "bool": ("bool",),
}
ATTRS: dict[str, dict[str, Any]] = {
    "clip": {"min": -1, "max": 2},
    "elu": {"alpha": 0.7},
    "gelu": {"approximate": "tanh"},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "leaky_relu": {"alpha": 0.1},
    "mod": {"truncated": False},
    "selu": {"alpha": 1.67, "gamma": 1.05},
    "thresholded_relu": {"alpha": 0.5},
}
POSITIVE = ("log", "sqrt", "power")  # of others, the answer is nan
NONZERO = ("divide", "mod", "reciprocal")


def narrowed(shape: Sequence[int], data: st.DataObject) -> tuple[int, ...]:
    """A shape that broadcasts to shape: some dimensions 1, some in front left out."""
    small = [n if data.draw(st.booleans()) else 1 for n in shape]
    return tuple(small[data.draw(st.integers(0, len(small))) :])


@pytest.mark.parametrize("entry", TABLE, ids=lambda e: e.name)
@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_elementwise(
    entry: Elementwise, data: st.DataObject, shape: Sequence[int], seed: int
) -> None:
    dtype = data.draw(st.sampled_from([d for kind in entry.kinds for d in DTYPES[kind]]))
    arrays = [numbers(shape, dtype, seed)]
    arrays += [numbers(narrowed(shape, data), dtype, seed + n) for n in range(1, entry.inputs)]
    if entry.name in POSITIVE:
        arrays = [np.abs(a) + 1 for a in arrays]
    if entry.name in NONZERO:
        arrays = [np.where(np.abs(a) < 1, 1, a).astype(dtype) for a in arrays]
    attrs = dict(ATTRS.get(entry.name, {}))
    if dtype.startswith("u") and entry.name == "clip":
        attrs["min"] = 1
    if dtype == "float16" and entry.name in ("tan", "exp", "power", "divide", "mod", "gelu"):
        return  # numpy rounds between steps: another answer, not a better one
    if entry.name == "tan":
        arrays = [np.clip(a, -1, 1) for a in arrays]
    check(entry.name, arrays, **attrs)


@pytest.mark.parametrize(
    ("a", "b"), [("float32", "int32"), ("float32", "bool"), ("int64", "uint8")]
)
def test_cast(a: str, b: str) -> None:
    x = np.abs(numbers((3, 5), a))
    check("cast", [x], dtype=b)
    check("cast", [x.astype(b)], dtype=a)


@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_where(data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    test = numbers(narrowed(shape, data), "bool", seed)
    check("where", [test, numbers(shape, seed=seed), numbers(narrowed(shape, data), seed=seed + 1)])


@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_index_maps(data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    x = numbers(shape, seed=seed)
    check("reshape", [x], shape=data.draw(st.permutations([*shape, 1])))
    check("transpose", [x], axes=data.draw(st.permutations(range(len(shape)))))
    check("broadcast_to", [numbers(narrowed(shape, data))], shape=(2, *shape))
    check("tile", [x], reps=[data.draw(st.integers(1, 3)) for _ in shape])
    if shape:
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        check("repeat", [x], axis=axis, times=data.draw(st.integers(1, 3)))


@few
@given(
    block=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    behind=st.lists(st.integers(1, 4), max_size=1),
    seed=seeds,
)
def test_depth_to_space(block: list[int], behind: list[int], seed: int) -> None:
    shape = (2, 2 * math.prod(block), *range(2, 2 + len(block)), *behind)
    check("depth_to_space", [numbers(shape, seed=seed)], block=block)


@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_concatenate(data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    assume(shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for n in range(data.draw(st.integers(1, 4))):
        own = list(shape)
        own[axis] = data.draw(st.integers(1, 3))
        parts.append(numbers(own, seed=seed + n))
    check("concatenate", parts, axis=axis)


@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_slice(data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    begin, step, extents = [], [], []
    for extent in shape:
        taken = range(extent)[slice(*data.draw(st.tuples(*[st.integers(0, extent)] * 2)))]
        if data.draw(st.booleans()):
            taken = taken[::-1]
        taken = taken[:: data.draw(st.integers(1, 2))]
        assume(len(taken))
        begin.append(taken.start)
        step.append(taken.step)
        extents.append(len(taken))
    check("slice", [numbers(shape, seed=seed)], begin=begin, step=step, shape=extents)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_pad(mode: str, data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    shape = [n + 1 for n in shape]
    pads = [data.draw(st.integers(-1, 3)) for _ in range(2 * len(shape))]
    assume(all(b + a + n > 0 for b, a, n in zip(pads, pads[len(shape) :], shape, strict=False)))
    check("pad", [numbers(shape, seed=seed)], pads=pads, mode=mode, value=0.5)


@few
@given(data=st.data(), shape=shapes, other=shapes, seed=seeds)
def test_gather(data: st.DataObject, shape: Sequence[int], other: Sequence[int], seed: int) -> None:
    assume(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    indices = np.random.default_rng(seed).integers(-n, n, tuple(other))
    check("gather", [numbers(shape, seed=seed), indices], axis=axis)


def test_gather_clamps_what_is_out_of_bounds() -> None:
    indices = np.array([-9, -4, -1, 3, 99])
    check("gather", [numbers((4,)), indices], axis=0)
    check("gather", [np.arange(4), indices], axis=0)
    (taken,) = evaluate("gather", [np.arange(4), indices], {"axis": 0})
    assert taken.tolist() == [0, 0, 3, 3, 3]


@pytest.mark.parametrize("op", ["sum", "prod", "mean", "max", "min"])
@few
@given(data=st.data(), shape=shapes, seed=seeds, keepdims=st.booleans())
def test_reductions(
    op: str, data: st.DataObject, shape: Sequence[int], seed: int, keepdims: bool
) -> None:
    assume(shape)
    ranks = st.integers(0, len(shape) - 1)
    axes = data.draw(st.lists(ranks, min_size=1, max_size=len(shape), unique=True))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32"]))
    check(op, [numbers(shape, dtype, seed)], axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@few
@given(data=st.data(), shape=shapes, seed=seeds, keepdims=st.booleans(), last=st.booleans())
def test_places(
    op: str, data: st.DataObject, shape: Sequence[int], seed: int, keepdims: bool, last: bool
) -> None:
    assume(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = numbers(shape, "int8", seed) // 4  # many are equal
    check(op, [x], axis=axis, keepdims=keepdims, last=last)
    holes = np.where(x == x.max(), np.nan, x).astype(np.float32)
    check(op, [holes], axis=axis, keepdims=keepdims, last=last)


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "fast_softmax"])
@few
@given(data=st.data(), shape=shapes, seed=seeds)
def test_softmax(op: str, data: st.DataObject, shape: Sequence[int], seed: int) -> None:
    assume(shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = numbers(shape, seed=seed) * 50  # e^x alone would overflow
    check(op, [x], axis=axis)
    (y,) = evaluate("softmax", [x], {"axis": axis})
    total = y.sum(axis)
    np.testing.assert_allclose(total[np.isfinite(total)], 1, rtol=1e-5)


@few
@given(data=st.data(), seed=seeds)
def test_conv2d(data: st.DataObject, seed: int) -> None:
    groups = data.draw(st.sampled_from([1, 2, 4]))
    group_in, group_out = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    kernel = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    attrs = {
        "strides": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "dilations": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "pads": data.draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "groups": groups,
    }
    x = numbers((data.draw(st.integers(1, 2)), group_in * groups, 6, 5), seed=seed)
    check("conv2d", [x, numbers((group_out * groups, group_in, *kernel), seed=seed)], **attrs)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
@few
@given(data=st.data(), seed=seeds, rank=st.integers(1, 2))
def test_pools(op: str, data: st.DataObject, seed: int, rank: int) -> None:
    def draw(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    kernel, strides, dilations = draw(1, 3), draw(1, 3), draw(1, 2)
    before = [
        data.draw(st.integers(0, d * (k - 1))) for d, k in zip(dilations, kernel, strict=True)
    ]
    after = [data.draw(st.integers(0, d * (k - 1))) for d, k in zip(dilations, kernel, strict=True)]
    attrs: dict[str, Any] = {"kernel": kernel, "strides": strides, "dilations": dilations}
    attrs |= {"pads": before + after, "ceil_mode": data.draw(st.booleans())}
    if op == "avg_pool":
        attrs["count_include_pad"] = data.draw(st.booleans())
    # A window may lie in the padding as a whole, where an average is 0/0: not with so much data.
    check(op, [numbers((1, 2, *[6, 7][:rank]), seed=seed)], **attrs)


@few
@given(m=st.integers(1, 4), n=st.integers(1, 4), k=st.integers(1, 4), seed=seeds)
def test_products(m: int, n: int, k: int, seed: int) -> None:
    x = numbers((m, k), seed=seed)
    check("dense", [x, numbers((n, k), seed=seed)], transpose_b=True)
    check("dense", [x, numbers((k, n), seed=seed)], transpose_b=False)
    check("matmul", [numbers((2, 1, m, k)), numbers((3, k, n), seed=seed)])


def test_normalizations() -> None:
    x = numbers((2, 5, 3, 3))
    parameters = [numbers((5,), seed=n) for n in range(3)]
    check("batch_norm", [x, *parameters, np.abs(numbers((5,), seed=4))], epsilon=1e-3)
    for size in (1, 2, 5):
        check("lrn", [x], size=size, alpha=0.1, beta=0.75, bias=2.0)
    for beta in (-0.5, 0.25, 0.5, 0.8, 1.0, 2.75, 9.0):  # products of roots, and others
        check("lrn", [x], size=3, alpha=0.1, beta=beta, bias=2.0)
    check("lrn", [x], size=11, alpha=0.1, beta=0.75, bias=2.0)  # more than there are channels
    check("lrn", [x.astype("float64")], size=3, alpha=0.1, beta=0.8, bias=2.0)
    check("lrn", [numbers((4, 7))], size=4, alpha=0.1, beta=0.75, bias=2.0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_offset(dtype: str) -> None:
    """All numbers there are."""
    check("offset", [np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_rescale(dtype: str) -> None:
    """Fixed-point factors per channel, with shifts to both sides."""
    rng = np.random.default_rng(0)
    sums = rng.integers(-(1 << 20), 1 << 20, (3, 6, 50)).astype(np.int32)
    sums[0, :, :4] = [[-(1 << 31), (1 << 31) - 1, 0, -1]]
    factors = rng.integers(1 << 30, 1 << 31, (6, 1)).astype(np.int32)
    shifts = np.array([[-31], [-20], [-9], [-1], [0], [3]], np.int32)
    check("rescale", [sums, factors, shifts, np.asarray(-7 if dtype != "uint8" else 7, dtype)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_lookup(dtype: str) -> None:
    table = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    check("lookup", [np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16), table])


def test_every_operator_is_tested_here() -> None:
    source = open(__file__, encoding="utf-8").read()
    missing = set(OPERATORS) - {e.name for e in TABLE}
    elsewhere = {"layout_transform", "layer_norm", "rms_norm"}  # the norms: test_norm.py
    elsewhere |= indexed_calls.OPERATORS  # test_indexed.py
    elsewhere |= {"pointwise", "winograd_conv2d"}  # in files of their names
    elsewhere |= {"attention"}  # test_attention.py
    elsewhere |= {"append_rows"}  # tests/graph/test_updates.py
    elsewhere |= {"draw_token"}  # test_draw.py
    elsewhere |= {"dense_blocks", "quantize_rows"}  # test_block_scaled.py
    assert {op for op in missing if f'"{op}"' not in source} - elsewhere == set()


def test_unknown_operator() -> None:
    with pytest.raises(KeyError, match="no operator 'conv'"):
        operator("conv")


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("add", [((2, 3), "float32"), ((4,), "float32")], {}, "do not broadcast"),
        ("add", [((2,), "float32"), ((2,), "int32")], {}, "different dtypes, float32 and int32"),
        ("exp", [((2,), "int32")], {}, "exp: does not take int32"),
        ("relu", [((2,), "float32")] * 2, {}, "relu: takes 1 inputs, was given 2"),
        ("reshape", [((2, 3), "float32")], {"shape": (4,)}, "does not have as many elements"),
        ("transpose", [((2, 3), "float32")], {"axes": (0, 0)}, "do not permute"),
        ("gather", [((2,), "float32"), ((), "int64")], {"axis": 1}, "axis 1 of a tensor with 1"),
        ("broadcast_to", [((), "float32")], {"shape": (1 << 16, 1 << 16)}, "32-bit indices"),
        ("tile", [((2,), "float32")], {"reps": (-1,)}, "would have the shape"),
        ("sum", [((2,), "float32")], {"axes": (), "keepdims": True}, "sum: axes"),
        ("matmul", [((2, 3), "float32"), ((4, 2), "float32")], {}, "do not fit"),
    ],
)
def test_refusals(op: str, types: Any, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        infer_types(op, [TensorType(*t) for t in types], attrs)
