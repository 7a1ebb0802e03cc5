"""Processes that start before it is known which kernels are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.driver import processes
from mlc_deploy.driver.processes import LARGE, Processes
from mlc_deploy.driver.workers import WorkerPool


class Pool(WorkerPool):
    """Counts those that are open."""

    opened, open = 0, 0

    def __init__(self, count: int, **how: Any) -> None:
        Pool.opened, Pool.open = Pool.opened + 1, Pool.open + 1
        super().__init__(count, **how)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        Pool.open -= 1
        super().shutdown()


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(processes, "WorkerPool", Pool)
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(Pool, "opened", 0)
    monkeypatch.setattr(Pool, "open", 0)


def large(folder: Path) -> Path:
    """A model of one layer in a large file."""
    size = LARGE // 1024
    w = numpy_helper.from_array(np.ones((size, 1024), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m")
    return (folder / "m").rename(folder / "m.onnx")


def test_they_start_with_the_first_compile_of_a_file(tmp_path: Path) -> None:
    file = large(tmp_path)
    for opened in (1, 1):
        mlc.compile(file, "aarch64")
        assert (Pool.opened, Pool.open) == (opened, 0)
    mlc.compile(file, "armv7a")
    assert Pool.opened == 2
    file.write_bytes(file.read_bytes())  # at another time: its content may be another
    mlc.compile(file, "aarch64")
    assert (Pool.opened, Pool.open) == (3, 0)


def test_a_model_that_failed_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(b"\xff" * LARGE)
    for opened in (1, 2):
        with pytest.raises(mlc.errors.ImporterError):
            mlc.compile(file, "aarch64")
        assert (Pool.opened, Pool.open) == (opened, 0)


def test_small_and_missing_files_start_none(tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(b"\xff" * (LARGE - 1))
    with Processes() as made:
        for name in ("small.onnx", "missing.onnx"):
            made.start_for(tmp_path / name, "")
        assert Pool.opened == 0
        assert made.for_missing(processes.FEW) is None
        assert made.for_missing(processes.FEW + 1) is not None
        assert Pool.open == 1
    assert Pool.open == 0


def test_one_process_is_this_one(tmp_path: Path) -> None:
    with Processes(1) as made:
        made.start_for(large(tmp_path), "")
        assert made.for_missing(processes.FEW + 1) is None
    assert Pool.opened == 0
