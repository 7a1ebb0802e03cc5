"""What outputs are held against does not come from a kernel: a wrong default is found out."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.builder import build_object
from mlc_deploy.graph import BlockBuilder, Constant, lower_graph
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops.cpu import default_schedule
from mlc_deploy.tune.boards import Board
from mlc_deploy.tune.extract import kernel_tasks, task_of
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.reference import COUNTS, Reference, indices, reference_of, values_of
from mlc_deploy.tune.runner import Request, measure, tensors_of
from tests.tune.searches import HOST, matmul, matmul_task
from tests.tune.tasks import data, result, tasks


@pytest.mark.parametrize("name", tasks())
def test_loops_are_interpreted(name: str) -> None:
    task = tasks()[name]
    reference = reference_of(task)
    assert reference == Reference(task.func)
    arrays = data(task)
    (found,) = reference(arrays[:-1])
    np.testing.assert_array_equal(found, result(task.func, arrays))


def test_loops_that_take_too_long_have_none() -> None:
    assert reference_of(matmul_task(64, 64, 64)) is None


def layer_task() -> Task:
    """relu(x w) of a graph, too large to be interpreted."""
    builder = BlockBuilder("main")
    x, w = builder.param("x", (64, 80)), builder.param("w", (80, 96))
    function = builder.finish([builder.emit("relu", builder.emit("matmul", x, w))])
    mlc_graph = mlc.compile(function, HOST).program.function
    (task,) = kernel_tasks(lower_graph(mlc_graph).kernels, HOST).values()
    return task


def test_kernels_of_a_graph_are_computed_by_numpy() -> None:
    reference = reference_of(layer_task())
    assert reference is not None
    x, w = (
        np.random.default_rng(n).random(s, np.float32) - 0.5
        for n, s in ((0, (64, 80)), (1, (80, 96)))
    )
    np.testing.assert_allclose(reference([x, w])[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def twice(m: int = 32) -> PrimFunc:
    """Another function of the same parameters as matmul's."""
    a, b = te.placeholder((m, m), name="a"), te.placeholder((m, m), name="b")
    c = te.compute((m, m), lambda i, j: a[i, j] + b[i, j], name="c")
    return te.create_prim_func([a, b, c], "main")


def test_a_wrong_default_is_found_out() -> None:
    right = task_of(matmul(), HOST)
    wrong = Task("t", right.func, HOST, lambda _: default_schedule(twice(), HOST))
    verdicts = []
    with mlc.connect("local://") as session:
        board = Board("local://", session, lambda _: None)
        for task in (right, wrong):
            request = Request(
                "t", task.workload, build_object(task.default(task.func), HOST),
                reference_of(task), tensors_of(task), "seconds", inf,
            )  # fmt: skip
            verdicts.append(measure(board, request))
    assert [v.verdict for v in verdicts] == ["ok", "wrong"]
    assert verdicts[1].message.endswith(" of 1024 elements are wrong")


def looked_up(twice: bool) -> PrimFunc:
    """Of a table's rows; `twice`: through a buffer that holds the indices as they are meant."""
    table, rows = te.placeholder((9, 4), "float32", "table"), te.placeholder((6,), "int64", "rows")
    more = te.placeholder((6,), "int64", "more")
    meant = te.compute((6,), lambda i: rows[i] + 9, name="meant")
    at = meant if twice else rows
    out = te.compute(
        (6, 4), lambda i, j: table[at[i] % 9, j] * more[i].astype("float32"), name="out"
    )
    return te.create_prim_func([table, rows, more, out], "main")


@pytest.mark.parametrize("twice", [False, True])
def test_only_what_is_no_index_is_anything_but_zero(twice: bool) -> None:
    task = task_of(looked_up(twice), HOST)
    _, rows, more, _ = task.func.buffers
    assert rows in indices(task.func) and more not in indices(task.func)
    assert values_of(task) == {more: COUNTS}
    drawn = COUNTS.draw((100,), "int64", 1)
    assert drawn.dtype == np.int64 and 0 < drawn.min() < drawn.max() <= 100


def quantized_task() -> Task:
    """int8 sums and biases, to int8 by a scale per channel."""
    b = BlockBuilder("main")
    x = b.param("x", (32, 64), "int8")
    rng = np.random.default_rng(0)
    sums = b.emit("matmul", x, Constant(rng.integers(-9, 9, (64, 48)).astype(np.int8)))
    sums = b.emit("add", sums, Constant(rng.integers(-9, 9, 48).astype(np.int32)))
    scale = Constant(rng.uniform(0.01, 0.02, 48).astype(np.float32))
    function = b.finish([b.emit("requantize", sums, scale, Constant(np.array(3, np.int8)))])
    graph = mlc.compile(function, HOST).program.function
    *_, task = kernel_tasks(lower_graph(graph).kernels, HOST).values()
    return task


def test_quantized_outputs_are_seldom_saturated_and_biases_are_tested() -> None:
    task = quantized_task()
    reference, code = reference_of(task), build_object(task.default(task.func), HOST)
    assert reference is not None
    with mlc.connect("local://") as session:
        board = Board("local://", session, lambda _: None)
        request = Request("t", task.workload, code, reference, tensors_of(task), "seconds", inf)
        assert measure(board, request).verdict == "ok"
        (wanted,) = board.state["expected"][task.workload]
        *inputs, _ = (tensor.numpy() for tensor in board.state["tensors"][task.workload])
    assert wanted.dtype == np.int8 and len(np.unique(wanted)) > 200
    assert np.isin(wanted, (-128, 127)).mean() < 0.2
    (unbiased,) = reference([a * 0 if a.dtype == np.int32 else a for a in inputs])
    assert (unbiased != wanted).mean() > 0.1
