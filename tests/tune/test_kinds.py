"""Default kernels of models of every kind of numbers are built, run and found right by a tuner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from mlc_deploy.board.connect import connect, target_of
from mlc_deploy.driver.model_graph import model_graph
from mlc_deploy.tune.api import Options, measuring, opened
from mlc_deploy.tune.layouts import Model
from mlc_deploy.tune.tune import default_costs
from mlc_deploy.tuned import Database
from tests.graph.test_quantize import network, quantized


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A convolution of one channel, a depthwise one and others, in float and quantized."""
    folder = tmp_path_factory.mktemp("kinds")
    onnx.save(network(), folder / "float.onnx")
    return {
        "float": folder / "float.onnx",
        "int8": quantized(folder, "QUInt8", "QInt8", True, "QDQ"),
    }


@pytest.mark.parametrize(
    ("kind", "precision", "cpu"),
    [
        ("float", "float32", "cortex-a72"),
        ("float", "float16", "cortex-a76"),
        ("float", "float16", "cortex-a7"),
        ("int8", "float32", "cortex-a72"),
        ("int8", "float32", "cortex-a76"),
        ("int8", "float32", "cortex-a7"),
    ],
)
def test_default_kernels_are_right(
    models: Mapping[str, Path], kind: str, precision: str, cpu: str
) -> None:
    board = f"qemu://{cpu}"
    with connect(board) as session:
        target = target_of(session.device)
    graph = model_graph(models[kind], target, precision=precision)
    tasks = Model(graph, target, precision).plan({}).tasks
    database = Database()
    with (
        opened(board, target) as boards,
        measuring(target, Options(1, strategy="random"), boards, database) as by,
    ):
        by.run = "defaults"
        default_costs(by, tasks)
    bad = {r.task: (r.measured.verdict, r.measured.message) for r in database.records}
    assert len(bad) == len(tasks)
    assert {task: why for task, why in bad.items() if why[0] != "ok"} == {}
