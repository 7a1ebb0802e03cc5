"""Operators of indices, windows, samples and integers: interpreted and compiled, against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.ir import IRModule
from mlc_deploy.ops import TensorType, evaluate, infer_types
from tests.ops.indexed_calls import CALLS, drawn
from tests.ops.operator_calls import OperatorCall
from tests.ops.test_definitions import check as check_definition
from tests.ops.test_strategies import check as check_compiled
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session


@pytest.mark.parametrize("kind", CALLS)
def test_definition(kind: str) -> None:
    for call in drawn(kind, 40):
        check_definition(call.op, call.arrays, **call.attrs)


@pytest.mark.parametrize("kind", CALLS)
def test_compiled(kind: str, local: Session) -> None:
    check_compiled(local, drawn(kind, 20), TARGETS["local"])


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
@pytest.mark.parametrize("kind", CALLS)
def test_compiled_on_arm(kind: str, board: str, request: pytest.FixtureRequest) -> None:
    check_compiled(board_named(request, board), drawn(kind, 6), TARGETS[board])


def long_call(kind: str, n: int) -> OperatorCall:
    x, order = np.ones(n, np.float32), np.arange(n)[::-1].copy()
    match kind:
        case "cumulative":
            flags = {"product": False, "exclusive": False, "reverse": False}
            return OperatorCall(kind, (x,), {"axis": 0, **flags})
        case "scatter_elements":
            return OperatorCall(kind, (x, order, x), {"axis": 0, "reduction": "none"})
    return OperatorCall(kind, (x, order[:, None], x), {"reduction": "add"})


@pytest.mark.parametrize("kind", ["cumulative", "scatter_elements", "scatter_nd"])
def test_work_grows_with_the_elements(kind: str, aarch64: Session) -> None:
    """Executed instructions of 4,000 elements and of 1,000."""
    counts = []
    for n in (1000, 4000):
        func, arrays = long_call(kind, n).lowered(mlc.Target(TARGETS["aarch64"]), f"of_{n}")
        library = build(IRModule({func.name: func}), target=TARGETS["aarch64"], name=func.name)
        outs = [aarch64.empty((n,))]
        given = [aarch64.tensor(a) for a in arrays]
        run = aarch64.load(library)[func.name].profile(*given, *outs)
        assert run.counts is not None
        counts.append(sum(c.total for c in run.counts))
    assert counts[1] <= 4.5 * counts[0], counts
    assert counts[1] <= 4000 * 20, counts


def test_quantized_arithmetic_is_onnx_s() -> None:
    """Half to even, then the zero point, then saturation; sums that zero points correct."""
    x = np.array([-0.5, 0.5, 1.5, 2.5, 1e9, -1e9], np.float32)
    scale, zero = np.float32(1), np.uint8(3)
    (q,) = evaluate("quantize", (x, np.asarray(scale), np.asarray(zero)), {})
    assert q.dtype == np.uint8 and q.tolist() == [3, 3, 5, 5, 255, 0]
    sums = np.array([1, 3, 5, -1000], np.int32)
    half = np.asarray(np.float32(0.5))
    (r,) = evaluate("requantize", (sums, half, np.asarray(np.int8(-1))), {})
    assert r.dtype == np.int8 and r.tolist() == [-1, 1, 1, -128]
    (real,) = evaluate("dequantize", (q, half, np.asarray(zero)), {})
    assert real.tolist() == [0, 0, 1, 1, 126, -1.5]


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        (
            "top_k",
            [((3,), "float32")],
            {"axis": 0, "k": 4, "largest": True},
            "top_k: 4 of the 3 elements along axis 0",
        ),
        (
            "scatter_nd",
            [((3,), "float32"), ((2, 2), "int64"), ((2,), "float32")],
            {"reduction": "none"},
            r"scatter_nd: tuples of 2 index \[3\]",
        ),
        (
            "gather_elements",
            [((3, 2), "float32"), ((3, 4), "int64")],
            {"axis": 0},
            r"gather_elements: indices \[3, 4\] for \[3, 2\]",
        ),
        (
            "quantize",
            [((3,), "float32"), ((2,), "float32"), ((), "int8")],
            {},
            "do not broadcast",
        ),
        (
            "quantize",
            [((3,), "float32"), ((), "float32"), ((), "int32")],
            {},
            "quantize: does not give int32",
        ),
        (
            "conv2d",
            [((1, 1, 4, 4), "int8"), ((1, 1, 3, 3), "float32")],
            {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1},
            "data is int8, weights are float32",
        ),
        (
            "einsum",
            [((2, 3), "float32"), ((4, 5), "float32")],
            {"equation": "ij,jk->ik"},
            "einsum: 'j' is 3 and 4",
        ),
    ],
)
def test_refusals(op: str, types: list, attrs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        infer_types(op, [TensorType(*t) for t in types], attrs)
