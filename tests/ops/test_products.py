"""Products of two matrices of data whose columns are no whole vectors: packed at run time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.graph import BlockBuilder
from mlc_deploy.ir import IRModule
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.kernels.products import FloatProduct, plan_floats
from mlc_rpc import Session
from mlc_targets import Target
from tests.ops.operator_calls import OperatorCall, array, close
from tests.sessions import TARGETS, board_named

CORTEX_A76 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu")


def planned(
    rows: int, depth: int, columns: int, dtype: str, target: Target, lead: tuple[int, ...] = (1,)
) -> FloatProduct | None:
    types = [TensorType((3, rows, depth), dtype), TensorType((*lead, depth, columns), dtype)]
    return plan_floats("matmul", False, types, {}, target)


def check(session: Session, target: Target, dtype: str) -> None:
    """Half a vector, one tile, several with a rest, and broadcast."""
    rng, few = Random(7), target.lanes("float32") // 2
    sizes = ((8, 3, few, (1,)), (8, 5, 9, (1,)), (21, 17, 43, (1,)), (9, 6, 11, ()))
    for rows, depth, columns, lead in sizes:
        plan = planned(rows, depth, columns, dtype, target, lead)
        assert plan is not None
        assert plan.filled
        a, b = array(rng, (3, rows, depth), dtype), array(rng, (*lead, depth, columns), dtype)
        call = OperatorCall("matmul", (a, b), {}, plan=plan)
        func, arrays = call.lowered(target, "product")
        module = session.load(build(func, target=target, name="product"))
        out = session.tensor(np.zeros((3, rows, columns), dtype))
        module["product"](*(session.tensor(x) for x in arrays), out)
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
        assert close(out.numpy(), wanted)
        module.close()


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_columns_are_filled_up(board: str, request: pytest.FixtureRequest) -> None:
    """With vectors of eight at most: longer ones are not worth filling."""
    target = Target(TARGETS[board])
    if target.lanes("float32") > 8:
        target = Target("x86_64 -mcpu=haswell")
    check(board_named(request, board), target, "float32")


def test_columns_of_halves_are_filled_up() -> None:
    with mlc.connect("qemu://cortex-a76") as session:
        check(session, CORTEX_A76, "float16")


def test_less_than_half_a_vector_is_not_filled() -> None:
    assert planned(64, 64, 1, "float32", CORTEX_A76) is None


def test_few_rows_do_not_pay_for_packing() -> None:
    assert planned(7, 64, 197, "float32", CORTEX_A76) is None
    plan = planned(7, 64, 196, "float32", CORTEX_A76)
    assert plan is not None
    assert not plan.filled


@pytest.mark.parametrize("target", ["armv7a", "aarch64", "x86_64", "host"])
@pytest.mark.parametrize("sizes", [(128, 384, 1536), (128, 1536, 384), (384, 128, 128)])
def test_dense_layers_have_work_for_threads(target: str, sizes: tuple[int, int, int]) -> None:
    """Whichever comes first, rows or columns, and whether rows are copied or not."""
    rows, depth, columns = sizes
    graph = BlockBuilder("main")
    x = graph.param("x", (rows, depth), "float32")
    y = graph.emit("dense", x, np.ones((depth, columns), np.float32), transpose_b=False)
    (kernel,) = mlc.compile(graph.finish([y]), target).metadata.kernels.values()
    assert int(kernel.tasks) >= 8


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("board", ["aarch64", "local"])
def test_a_dense_product_of_data(board: str, turned: bool, request: pytest.FixtureRequest) -> None:
    """Weights that are data make tiles as well; on ARM, about an instruction of four products."""
    session, target = board_named(request, board), Target(TARGETS[board])
    rng = Random(9)
    a, b = array(rng, (33, 48), "float32"), array(rng, (48, 48), "float32")
    attrs = {"transpose_b": turned}
    plan = plan_floats(
        "dense", False, [TensorType(x.shape, "float32") for x in (a, b)], attrs, target
    )
    assert plan is not None
    call = OperatorCall("dense", (a, b), attrs, plan=plan)
    func, arrays = call.lowered(target, "product")
    module = session.load(build(IRModule({"product": func}), target=target, name="product"))
    out = session.empty((33, 48))
    given = [*(session.tensor(x) for x in arrays), out]
    if board == "aarch64":
        counts = module["product"].profile(*given).counts
        assert counts is not None
        assert sum(c.total for c in counts) < 33 * 48 * 48 / 4 * 2.2, counts
    else:
        module["product"](*given)
    assert close(out.numpy(), call.expected()[0])
