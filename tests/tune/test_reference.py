"""What outputs are held against does not come from a kernel: a wrong default is found out."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.graph import BlockBuilder, lower_graph
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops.cpu import default_schedule
from mlc_deploy.tune.boards import Board
from mlc_deploy.tune.builder import build_object
from mlc_deploy.tune.extract import kernel_tasks, task_of
from mlc_deploy.tune.measuring import tensors_of
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.reference import Reference, reference_of
from mlc_deploy.tune.runner import Request, measure
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
