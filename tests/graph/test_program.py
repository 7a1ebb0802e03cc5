"""Memory plans and programs: every call's operands lie where they should, and nothing else does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import (
    BlockBuilder,
    Constant,
    Function,
    GraphProgram,
    Value,
    evaluate,
    lower_graph,
    optimize,
    unwritten_program,
)
from mlc_deploy.graph.fuse import fuse_operators
from mlc_deploy.graph.lower import lower_kernel
from mlc_deploy.graph.plan import Interval, Place, lower_bound, place_intervals
from mlc_deploy.graph.views import concatenate_in_place
from mlc_deploy.ir.interp import run
from mlc_targets import Target
from tests.graph.test_graph import constant, network
from tests.onnx_models import Array, light_model

TARGET = Target("aarch64")
DIGITS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models"


def program(function: Function) -> GraphProgram:
    return lower_graph(function)


def fused(function: Function) -> Function:
    return fuse_operators(concatenate_in_place(optimize(function)))


def execute(p: GraphProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Walks the call table as the runtime does, with the interpreter in the place of machine code.
    Memory begins as nonsense, so that a read before the write shows."""
    outputs = {n: np.full(t.bytes, 0xA5, np.uint8) for n, t in p.outputs}
    spaces = {
        "arena": [np.full(p.arena, 0xA5, np.uint8)],
        "weights": [np.frombuffer(p.weights, np.uint8).copy()],
        "input": [inputs[n].reshape(-1).view(np.uint8).copy() for n, _ in p.inputs],
        "output": list(outputs.values()),
    }
    for call in p.calls:
        kernel = lower_kernel(p.kernels[call.kernel], TARGET)
        operands = []
        for place, buffer in zip(call.args, kernel.buffers, strict=True):
            memory = spaces[place.space][place.index]
            assert place.offset % 64 == 0 and place.offset + place.size <= len(memory)
            data = memory[place.offset : place.offset + place.size].view(buffer.dtype)
            operands.append(data.reshape(buffer.shape))  # type: ignore[arg-type]
        run(kernel, *operands)
    return {
        n: outputs[n].view(t.dtype).reshape(t.shape)  # type: ignore[arg-type]
        for n, t in p.outputs
    }


def check(function: Function) -> GraphProgram:
    p = program(function)
    inputs = {
        v.name: np.random.default_rng(0).normal(size=v.type.shape).astype(v.type.dtype)  # type: ignore[arg-type]
        for v in function.params
    }
    found = execute(p, inputs)
    for name, expected in evaluate(function, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    return p


def test_network() -> None:
    p = check(fused(network()))
    assert [(c.layer, c.kernel) for c in p.calls] == [
        ("conv1", "conv2d_add_relu"),
        ("fc", "dense"),
        ("softmax_2", "softmax"),
    ]
    assert p.weights_hash == hashlib.blake2b(p.weights, digest_size=32).digest()
    assert p.arena == p.arena_lower_bound


def test_without_optimization() -> None:
    check(network())


def test_model_map() -> None:
    p = program(fused(network()))
    model = p.model_map()
    assert list(model) == ["inputs", "outputs", "arena", "weights", "weights_hash", "calls"]
    assert model["inputs"] == [{"name": "images:0", "dtype": "float32", "shape": (1, 3, 6, 6)}]
    kernel, layer, args = model["calls"][0]
    assert (list(p.kernels)[kernel], layer) == ("conv2d_add_relu", "conv1")
    assert args == [(2, 0, 0, 432), (1, 0, 0, 432), (1, 0, 448, 16), (3, 1, 0, 576)]
    assert model["calls"][-1][2][-1] == (3, 0, 0, 40)


def test_equal_kernels_and_weights_are_there_once() -> None:
    b = BlockBuilder()
    y = b.param("x", (2, 6))
    for _ in range(3):
        y = b.emit("relu", b.emit("dense", y, constant((6, 6)), transpose_b=True))
    y = b.emit("relu", b.emit("reshape", y, shape=(12,)))
    p = check(b.finish([y]))
    assert list(p.kernels) == ["dense", "relu", "relu_1"] and len(p.calls) == 7
    assert len(p.weights) == 192  # 36 float32, and 48 bytes to the next multiple of 64


def test_kernels_and_calls_are_there_before_the_weights() -> None:
    b = BlockBuilder()
    y = b.param("x", (2, 6))
    for begin in (0, 1, 0):
        weights = Constant(np.arange(begin, begin + 36, dtype=np.float32).reshape(6, 6))
        y = b.emit("dense", y, weights, transpose_b=True)
    unwritten = unwritten_program(b.finish([y]))
    before, written = unwritten.program, unwritten.written()
    assert not before.weights and list(written.kernels) == list(before.kernels)
    assert [c.args[1].offset for c in before.calls] == [0, 192, 384]
    assert [c.args[1].offset for c in written.calls] == [0, 192, 0]  # equal ones share a place
    assert len(written.weights) == 384


def test_views_cost_nothing() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 6))
    y = b.emit("reshape", b.emit("relu", b.emit("reshape", x, shape=(12,))), shape=(3, 4))
    p = check(b.finish([b.emit("reshape", y, shape=(4, 3))], ["y"]))
    assert [c.kernel for c in p.calls] == ["relu"]
    assert p.calls[0].args == (Place("input", 0, 0, 48), Place("output", 0, 0, 48))


def test_outputs_that_are_no_calls_own_are_copied() -> None:
    b = BlockBuilder()
    x = b.param("x", (2, 6))
    y = b.emit("relu", x)
    view = b.emit("reshape", y, shape=(12,))
    outputs = [y, view, x, constant((3,)), y]
    p = check(b.finish(outputs, ["y", "view", "x", "c", "again"]))
    assert [(c.kernel, c.layer) for c in p.calls] == [
        ("relu", "relu_0"),
        ("copy", "view"),
        ("copy_1", "x"),
        ("copy_2", "c"),
        ("copy_1", "again"),
    ]
    assert p.arena == 0


def test_one_value_in_two_arguments() -> None:
    b = BlockBuilder()
    x = b.emit("relu", b.param("x", (5,)))
    check(b.finish([b.emit("add", x, x)]))


def test_layer_names_are_unique() -> None:
    b = BlockBuilder()
    y = b.param("x", (5,))
    for _ in range(2):
        y = b.emit("relu", y, source="same")
    names = [c.layer for c in program(b.finish([y])).calls]
    assert names == ["same.relu_0", "same.relu_1"]


# ------------------------------------------------------------------------------------- in place


def test_a_residual_is_added_in_place() -> None:
    b = BlockBuilder()
    x = b.emit("relu", b.emit("dense", b.param("x", (4, 64)), constant((64, 64)), transpose_b=True))
    y = b.emit("dense", x, constant((64, 64)), transpose_b=True)
    y = b.emit("add", y, x)
    p = check(fuse_operators(b.finish([b.emit("max", y, axes=(1,), keepdims=True)])))
    assert [c.kernel for c in p.calls] == ["dense_relu", "dense_add", "max"]
    # The product reads all of x for each element, so that its memory is not free while it runs.
    assert p.arena == p.arena_lower_bound == 2 * 1024
    assert [s.in_place for s in p.kernels.values()] == [(), (), ()]


def test_a_sum_takes_over_what_nothing_reads_again() -> None:
    b = BlockBuilder()
    x = b.emit("dense", b.param("x", (4, 64)), constant((64, 64)), transpose_b=True)
    y = b.emit("dense", x, constant((64, 64)), transpose_b=True)
    z = b.emit("dense", y, constant((64, 64)), transpose_b=True)
    z = b.emit("relu", b.emit("add", z, b.emit("reshape", x, shape=(4, 64))))
    p = check(fuse_operators(b.finish([b.emit("max", z, axes=(1,), keepdims=True)])))
    assert p.arena == p.arena_lower_bound == 2 * 1024
    assert p.kernels["dense_add_relu"].in_place == (2,)


def test_what_is_read_at_other_places_is_not_overwritten() -> None:
    b = BlockBuilder()
    x = b.emit("dense", b.param("x", (8, 8)), constant((8, 8)), transpose_b=True)
    y = b.emit("add", b.emit("transpose", x, axes=(1, 0)), x)
    p = check(fuse_operators(b.finish([b.emit("softmax", y, axis=1)])))
    assert p.kernels["transpose_add"].in_place == ()


# ---------------------------------------------------------------------------------------- views


def test_what_is_concatenated_is_computed_in_place() -> None:
    """Also where a concatenation is part of another, and in memory of an output."""
    b = BlockBuilder()
    x = b.param("x", (1, 8, 4))
    parts = [b.emit(op, x) for op in ("relu", "sigmoid", "negative")]
    first = b.emit("concatenate", parts[0], b.emit("reshape", parts[1], shape=(1, 8, 4)), axis=1)
    y = b.emit("concatenate", first, parts[2], axis=1)
    p = check(fused(b.finish([b.emit("softmax", first, axis=2), y])))
    assert [c.kernel for c in p.calls] == ["relu", "sigmoid", "negative", "softmax"]
    assert [c.args[1].offset for c in p.calls[:3]] == [0, 128, 256]
    assert p.arena == 0


def test_concatenations_that_must_run() -> None:
    def kernels(shape: tuple[int, ...], axis: int, again: bool = False) -> list[str]:
        b = BlockBuilder()
        x = b.param("x", shape)
        y, z = b.emit("relu", x), b.emit("sigmoid", x)
        whole = b.emit("concatenate", y, y if again else z, axis=axis)
        p = check(fused(b.finish([b.emit("softmax", whole, axis=1), z])))
        return [c.kernel for c in p.calls]

    assert kernels((1, 16), 1) == ["sigmoid", "relu_concatenate", "softmax"]  # z is an output
    assert kernels((2, 16), 1, True) == ["sigmoid", "relu_concatenate", "softmax"]
    b = BlockBuilder()
    x = b.param("x", (1, 5))  # 20 bytes are not aligned
    parts = b.emit("concatenate", b.emit("negative", x), b.emit("sigmoid", x), axis=1)
    p = check(fused(b.finish([b.emit("softmax", parts, axis=1)])))
    assert [c.kernel for c in p.calls] == ["negative_sigmoid_concatenate", "softmax"]


def test_a_slice_in_one_piece_is_a_view() -> None:
    b = BlockBuilder()
    y = b.emit("relu", b.param("x", (1, 8, 16)))
    half = b.emit("slice", y, begin=(0, 4, 0), step=(1, 1, 1), shape=(1, 4, 16))
    odd = b.emit("slice", y, begin=(0, 0, 1), step=(1, 1, 1), shape=(1, 8, 8))
    p = check(fused(b.finish([b.emit("sigmoid", half), b.emit("negative", odd), half])))
    assert [c.kernel for c in p.calls] == ["relu", "sigmoid", "slice_negative", "copy"]
    assert p.calls[1].args[0].offset == p.calls[0].args[1].offset + 4 * 16 * 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("crsau"), st.integers(0), st.integers(0)), max_size=9))
def test_any_arrangement_of_views(steps: list[tuple[str, int, int]]) -> None:
    """Concatenations, slices, reshapes, sums and elementwise calls of each other in any order."""
    b = BlockBuilder()
    values = [b.param("x", (1, 16)), b.param("y", (1, 16))]
    for kind, one, other in steps:
        x, y = values[one % len(values)], values[other % len(values)]
        length = x.type.shape[1]
        assert isinstance(length, int)
        match kind:
            case "c" if length < 200:
                values.append(b.emit("concatenate", x, y, axis=1))
            case "r":
                flat = b.emit("reshape", x, shape=(length, 1))
                values.append(b.emit("reshape", flat, shape=(1, length)))
            case "s" if length > 16:
                begin = 16 * (other % (length // 16))
                values.append(b.emit("slice", x, begin=(0, begin), step=(1, 1), shape=(1, 16)))
            case "a" if x.type == y.type:
                values.append(b.emit("add", x, y))
            case _:
                values.append(b.emit("negative", x))
    check(fused(b.finish([values[-1], values[len(values) // 2]], ["last", "middle"])))


# ---------------------------------------------------------------------------------------- plans

intervals = st.builds(
    lambda size, begin, length: Interval(64 * size, begin, begin + length),
    st.integers(0, 20),
    st.integers(0, 12),
    st.integers(0, 6),
)


@settings(deadline=None)
@given(st.lists(intervals, max_size=14))
def test_nothing_alive_overlaps(given: list[Interval]) -> None:
    offsets = place_intervals(given)
    for n, (a, at) in enumerate(zip(given, offsets, strict=True)):
        for b, other in zip(given[n + 1 :], offsets[n + 1 :], strict=True):
            apart = at + a.size <= other or other + b.size <= at
            assert apart or not a.meets(b) or not (a.size and b.size)
    arena = max((at + i.size for at, i in zip(offsets, given, strict=True)), default=0)
    assert lower_bound(given) <= arena <= sum(i.size for i in given)


def test_lower_bound() -> None:
    alive = [Interval(64, 0, 1), Interval(128, 1, 2), Interval(256, 2, 2), Interval(64, 3, 3)]
    assert lower_bound(alive) == 128 + 256


@pytest.mark.parametrize(
    ("name", "limit"), [("digits_cnn", 1.0), ("squeezenet", 1.0), ("shufflenet", 1.05)]
)
def test_arena_of_models(name: str, limit: float) -> None:
    """Close to the most that is alive at once."""
    shipped = DIGITS / f"{name}.onnx"
    function = from_onnx(shipped if shipped.exists() else light_model(name))
    p = program(fused(function))
    assert p.arena_lower_bound <= p.arena <= limit * p.arena_lower_bound


def test_a_shortcut_that_comes_first_costs_no_memory() -> None:
    """The calls run in an order in which the main path, which widens and narrows again, comes
    before it."""

    def arena(shortcut_first: bool) -> int:
        bb = BlockBuilder("main")
        entry = bb.emit("tanh", bb.param("x", (1, 64, 64)))

        def widened(value: Value) -> Value:
            wide: Value = bb.emit("exp", bb.emit("concatenate", *[value] * 4, axis=0))
            return wide

        aside = widened(entry) if shortcut_first else None
        wide = widened(bb.emit("matmul", entry, entry))
        narrow = bb.emit("sum", bb.emit("matmul", wide, wide), axes=(0,), keepdims=True)
        aside = aside or widened(entry)
        function = bb.finish([bb.emit("matmul", aside, narrow)], ["y"])
        return lower_graph(optimize(function)).arena

    assert arena(True) == arena(False)


def test_a_shortcut_that_narrows_waits() -> None:
    """As where a residual network halves its images: the shortcut, which comes first, and the
    block's first call take the same memory; then the block needs less and less."""
    b = BlockBuilder("main")
    shapes = {"aside": (32, 64), "one": (32, 64), "two": (8, 32), "three": (32, 8)}
    weights = {name: b.param(name, shape, "int32") for name, shape in shapes.items()}
    x = way = b.emit("negative", b.param("x", (64, 16), "int32"))
    aside = b.emit("matmul", weights["aside"], x)
    for name in ("one", "two", "three"):
        way = b.emit("matmul", weights[name], way)
    p = check(fused(b.finish([b.emit("matmul", b.emit("transpose", aside, axes=(1, 0)), way)])))
    row = 16 * 4  # bytes
    assert p.arena == p.arena_lower_bound == (64 + 8 + 32) * row
