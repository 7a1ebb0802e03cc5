"""Numbers that ONNX stores and boards have no arithmetic for, against the package ml_dtypes: every
pattern of bits read, and written from every float16, from halves between neighbours and from what
is beyond the largest one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlc_deploy import backend
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.frontend.narrow import BY_CODE, NarrowFloat, NarrowInteger, shown, stored
from mlc_deploy.graph import evaluate

Array = NDArray[Any]
FLOATS = [c for c, kind in BY_CODE.items() if isinstance(kind, NarrowFloat)]
INTEGERS = [c for c, kind in BY_CODE.items() if isinstance(kind, NarrowInteger)]
FLOAT8 = [c for c in FLOATS if BY_CODE[c].bits == 8 and BY_CODE[c].name != "float8_e8m0fnu"]
BFLOAT16 = TensorProto.BFLOAT16
E8M0 = TensorProto.FLOAT8E8M0
BOARDS = ("local://", "qemu://cortex-a7")
NEWEST = onnx.defs.onnx_opset_version()


def model(
    nodes: list[Any],
    inputs: Mapping[str, tuple[int, tuple[int, ...]]],
    outputs: dict[str, int],
    constants: tuple[Any, ...] = (),
    shape: tuple[int, ...] | None = None,
) -> Any:
    given = [helper.make_tensor_value_info(n, *kind) for n, kind in inputs.items()]
    results = [helper.make_tensor_value_info(n, code, shape) for n, code in outputs.items()]
    graph = helper.make_graph(nodes, "graph", given, results, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWEST)])


def cast(source: int, to: int, count: int, **attributes: Any) -> Any:
    node = helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)
    return model([node], {"x": (source, (count,))}, {"y": to})


def dtype_of(code: int) -> Any:
    return helper.tensor_dtype_to_np_dtype(code)


def bits(array: Array) -> Array:
    return np.asarray(stored(array))


def samples(code: int) -> Array:
    """Every float16, the numbers of the type, their neighbours and the halves in between, and a
    thousand of any bits."""
    rng = np.random.default_rng(code)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    patterns = rng.integers(0, 1 << 32, 1000, np.uint32, endpoint=False).view(np.float32)
    kind = BY_CODE[code]
    assert isinstance(kind, NarrowFloat)
    own = np.arange(1 << kind.bits, dtype=kind.carrier)
    exact = np.unique(np.asarray(shown(own, kind)).astype(np.float32))
    exact = exact[np.isfinite(exact)]
    with np.errstate(over="ignore", invalid="ignore"):
        halves = (exact[1:] / 2 + exact[:-1] / 2).astype(np.float32)
        parts = [exact, halves, np.nextafter(halves, np.inf), np.nextafter(halves, -np.inf)]
        parts.append(np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e38, -1e38], np.float32))
        found = np.concatenate([every, patterns, *parts, 1.5 * exact]).astype(np.float32)
    # What armv7 flushes to zero rounds to the same in all types but those with float32's range.
    return np.where(np.abs(found) < 2.0**-126, np.float32(0), found)


def written(code: int, x: Array, saturate: bool) -> Array:
    kind, dtype = BY_CODE[code], dtype_of(code)
    with np.errstate(all="ignore"):
        if code == E8M0:
            return numpy_helper.to_float8e8m0(x, saturate, "up")
        if saturate and code in FLOAT8:
            return np.asarray(numpy_helper.saturate_cast(x, dtype))
        return np.asarray(x.astype(dtype)) if kind.bits < 32 else x


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("code", FLOATS, ids=lambda c: BY_CODE[c].name)
def test_written(code: int, saturate: int) -> None:
    x = samples(code)
    function = from_onnx(cast(TensorProto.FLOAT, code, x.size, saturate=saturate))
    (found,) = evaluate(function, [x]).values()
    theirs = written(code, x, bool(saturate))
    nan = np.isnan(x) & (BY_CODE[code].name != "bfloat16")
    # The sign of NaN is nobody's.
    same = found == bits(theirs)
    assert same[~np.isnan(x)].all(), x[~same]
    mine = shown(found, BY_CODE[code])
    np.testing.assert_array_equal(mine[nan].astype("f4"), theirs[nan].astype("f4"))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_are_rounded_by_mode(mode: str) -> None:
    x = samples(E8M0)
    function = from_onnx(cast(TensorProto.FLOAT, E8M0, x.size, round_mode=mode))
    (found,) = evaluate(function, [x]).values()
    np.testing.assert_array_equal(found, bits(numpy_helper.to_float8e8m0(x, True, mode)))


@pytest.mark.parametrize("code", list(BY_CODE), ids=lambda c: BY_CODE[c].name)
def test_read(code: int) -> None:
    kind = BY_CODE[code]
    every = kind.from_bits(np.arange(1 << min(kind.bits, 8), dtype=np.uint8))
    own = np.arange(1 << 16, dtype=np.uint16) if kind.bits > 8 else every
    array = np.asarray(shown(own, kind))
    function = from_onnx(cast(code, TensorProto.FLOAT, own.size))
    (found,) = evaluate(function, [stored(array)]).values()
    np.testing.assert_array_equal(found, array.astype(np.float32))


@pytest.mark.parametrize("code", INTEGERS, ids=lambda c: BY_CODE[c].name)
def test_whole_numbers_wrap(code: int) -> None:
    x = np.arange(-200, 200).astype(np.float32) + np.float32(0.5)
    (found,) = evaluate(from_onnx(cast(TensorProto.FLOAT, code, x.size)), [x]).values()
    kind = BY_CODE[code]
    assert isinstance(kind, NarrowInteger)
    low, high = kind.range
    np.testing.assert_array_equal(found, (x.astype(int) - low) % (high - low + 1) + low)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("code", FLOATS, ids=lambda c: BY_CODE[c].name)
def test_compiled(code: int, board: str) -> None:
    """There and back, on a board."""
    x = samples(code)[::7]
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=code),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    shape = {"x": (TensorProto.FLOAT, (x.size,))}
    prepared = backend.prepare(model(nodes, shape, {"q": code, "y": TensorProto.FLOAT}), board)
    try:
        q, y = prepared.run([x])
    finally:
        prepared.close()
    theirs = written(code, x, True)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(bits(q)[number], bits(theirs)[number])
    np.testing.assert_array_equal(y, theirs.astype(np.float32))


@pytest.mark.parametrize("code", list(BY_CODE), ids=lambda c: BY_CODE[c].name)
@pytest.mark.parametrize("external", [False, True])
def test_weights(code: int, external: bool, tmp_path: Path) -> None:
    """Packed in the file, and beside it."""
    kind = BY_CODE[code]
    own = kind.from_bits(np.arange(15, dtype=np.uint8) & ((1 << min(kind.bits, 8)) - 1)).astype(
        kind.carrier
    )
    w = np.asarray(shown(own.reshape(3, 5), kind))
    node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    tensor = numpy_helper.from_array(w, "w")
    path = tmp_path / "model.onnx"
    made = model([node], {}, {"y": TensorProto.FLOAT}, (tensor,), (3, 5))
    onnx.save(made, path, save_as_external_data=external, size_threshold=0)
    (found,) = evaluate(from_onnx(path), []).values()
    np.testing.assert_array_equal(found, w.astype(np.float32))


@pytest.mark.parametrize("code", list(BY_CODE), ids=lambda c: BY_CODE[c].name)
def test_weights_that_are_no_raw_data(code: int) -> None:
    """An int32 for each, or for the numbers of each byte."""
    values = [1.0, 0.5, 0.0] if code in FLOATS and code != E8M0 else [1.0, 1.0, 1.0]
    tensor = helper.make_tensor("w", code, [3], np.array(values, dtype_of(code)))
    assert tensor.int32_data and not tensor.raw_data
    node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    (found,) = evaluate(from_onnx(model([node], {}, {"y": 1}, (tensor,))), []).values()
    np.testing.assert_array_equal(found, values)


def test_weights_of_another_size() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21")
    node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    with pytest.raises(ImporterError) as caught:
        from_onnx(model([node], {}, {"y": TensorProto.FLOAT}, (tensor,)))
    assert "tensor" in str(caught.value)


def test_arithmetic_is_rounded_after_each_operator() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([-1], np.int64), "shape")
    x = np.linspace(-3, 3, 64).astype(dtype_of(BFLOAT16))
    made = model(nodes, {"x": (BFLOAT16, (64,))}, {"y": BFLOAT16}, (shape,))
    (y,) = backend.run_model(made, [x])
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(bits(y), bits(x * x + x))


def test_what_is_dropped_is_computed_with() -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], seed=1)
    known = (
        numpy_helper.from_array(np.array(0.25, np.float32), "ratio"),
        numpy_helper.from_array(np.array(True), "training"),
    )
    x = np.linspace(-3, 3, 64).astype(dtype_of(BFLOAT16))
    (y,) = backend.run_model(model([node], {"x": (BFLOAT16, (64,))}, {"y": BFLOAT16}, known), [x])
    kept = np.random.RandomState(1).uniform(0, 1, 64) >= 0.25
    theirs = np.where(kept, x.astype(np.float32) / np.float32(0.75), 0).astype(x.dtype)
    np.testing.assert_array_equal(y.astype("f4"), theirs.astype("f4"))


def test_branches_and_loops_pass_narrow_values_on() -> None:
    """The body's declarations say what they are."""
    info = helper.make_tensor_value_info
    x = info("s", BFLOAT16, [4])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["go"]),
            helper.make_node("Add", ["s", "s"], ["t"]),
        ],
        "body",
        [info("turn", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), x],
        [info("go", TensorProto.BOOL, []), info("t", BFLOAT16, [4])],
    )
    node = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    count = numpy_helper.from_array(np.array(3, np.int64), "count")
    made = model([node], {"x": (BFLOAT16, (4,))}, {"y": BFLOAT16}, (count,))
    given = np.array([0.5, -1, 3, 100], dtype_of(BFLOAT16))
    (y,) = backend.run_model(made, [given])
    np.testing.assert_array_equal(y.astype("f4"), given.astype("f4") * 8)


def test_a_narrow_type_that_got_lost() -> None:
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["s"])
    at = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    with pytest.raises(ImporterError) as caught:
        from_onnx(model([node, at], {"x": (BFLOAT16, (2,))}, {"y": BFLOAT16}))
    assert str(caught.value) == (
        "output 'y' is said to be bfloat16 and computed as no narrow type\n"
        "  in:  the model\n"
        "  try: a Cast in front of the output"
    )


def test_bits_of_less_than_a_byte() -> None:
    node = helper.make_node("BitCast", ["x"], ["y"], name="bits", to=TensorProto.INT8)
    with pytest.raises(ImporterError) as caught:
        from_onnx(model([node], {"x": (TensorProto.INT4, (2,))}, {"y": TensorProto.INT8}))
    assert str(caught.value).startswith("the bits of int4 are not supported\n")
