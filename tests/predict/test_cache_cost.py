"""What the simulated caches cost: at most four times the emulator's own time to count."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_targets.caches import caches_for

MOST = 4.0
WIDTH, EXTENT = 64, 56


def convolution() -> mlc.CompiledModel:
    shape = (1, WIDTH, EXTENT, EXTENT)
    weights = np.full((WIDTH, WIDTH, 1, 1), 0.01, np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return mlc.compile(from_onnx(made), "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72")


def cpu_s(compiled: mlc.CompiledModel, runs: int, **options: Any) -> float:
    """Of the emulator, for so many runs that are counted: seconds that it computed, whatever else
    the machine does."""
    inputs = {"x": np.ones((1, WIDTH, EXTENT, EXTENT), np.float32)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with mlc.connect("qemu://cortex-a72", **options) as board:
        module = board.load(compiled)
        for _ in range(runs):
            counts = module.profile(inputs).run.counts
            assert counts and bool(counts[0].misses) == ("caches" in options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_simulated_caches_cost_at_most_four_times_the_counting() -> None:
    compiled, caches = convolution(), caches_for("cortex-a72")
    assert len(caches) == 7

    def of_a_run(**options: Any) -> float:
        """Without what it takes to start."""
        return cpu_s(compiled, 5, **options) - cpu_s(compiled, 1, **options)

    alone, simulated = of_a_run(), of_a_run(caches=caches)
    print(f"caches cost {simulated / alone:.2f} times the counting")
    assert alone > 0.1, alone  # or seconds that are too few decide
    assert simulated <= MOST * alone, (simulated, alone)
