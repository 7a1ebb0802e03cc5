"""Kernels of which one adds a tensor that the other does not have share a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.compare import compare
from mlc_deploy.driver.compile import CompiledModel
from mlc_deploy.driver.deploy import every_input
from mlc_deploy.driver.pairs import added_by, pairs_of
from mlc_deploy.driver.sharing import compile_together
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.lower import KernelSource
from mlc_targets import Target

BOARDS = {"host": "local://", "aarch64": "qemu://cortex-a72", "armv7a": "qemu://cortex-a7"}
CHANNELS = 32
WINDOW: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path))
    yield


def residual(side: int, first: bool, dtype: str = "float32") -> Function:
    """Two convolutions; the first or the second adds a tensor."""
    draw = np.random.default_rng(side)
    bb = BlockBuilder()
    value: Any = bb.param("x", (1, CHANNELS, side, side), dtype)
    term = bb.param("z", (1, CHANNELS, side, side), dtype)
    for adds in (first, not first):
        weight = draw.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 17
        value = bb.emit("conv2d", value, weight.astype(dtype), groups=1, **WINDOW)
        value = bb.emit("add", value, draw.standard_normal((CHANNELS, 1, 1)).astype(dtype))
        value = bb.emit("relu", bb.emit("add", value, term) if adds else value)
    return bb.finish([value], ["y"])


def sources_of(graph: Function, target: Target) -> Mapping[str, KernelSource]:
    return mlc.compile(graph, target).program.kernels


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("side", [7, 12])
@pytest.mark.parametrize("target", BOARDS)
def test_a_residual(target: str, side: int, first: bool) -> None:
    """The bits are those of kernels by themselves, and so is what callers see of a kernel."""
    models: list[CompiledModel] = []
    for share in (False, True):
        with mlc.PassContext(config={"compile.share": share, "compile.cache": False}):
            models.append(mlc.compile(residual(side, first), target, workers=1))
    alone, together = models
    numbers = {name: o.number for name, o in (together.library.compiled or {}).items()}
    assert sorted(n for n in numbers.values() if n is not None) == [0, 1]
    inputs = every_input(alone, {})
    with mlc.connect(BOARDS[target]) as board:
        right, found = (board.load(model).run(inputs)["y"] for model in models)
    assert compare(right, alone.evaluate(inputs)["y"]).ok
    np.testing.assert_array_equal(found, right)
    for name, kernel in together.metadata.kernels.items():
        before = alone.metadata.kernels[name]
        assert (kernel.params, kernel.tasks, kernel.scalars) == (before.params, before.tasks, ())
    assert len(together.library.object_bytes) < len(alone.library.object_bytes)


def test_the_cache_knows_pairs() -> None:
    graph, config = residual(8, False), {"compile.share": True, "compile.cache": True}
    with mlc.PassContext(config=config):
        once, again = (mlc.compile(graph, "aarch64", workers=1) for _ in range(2))
    assert (once.kernels_cached, again.kernels_compiled) == (0, 0)
    assert again.library.object_bytes == once.library.object_bytes


def test_which_kernel_adds_which_parameter() -> None:
    target = Target("aarch64")
    sources = sources_of(residual(8, False), target)
    (pair,) = pairs_of(sources)
    longer, shorter = sources[pair.longer], sources[pair.shorter]
    assert (len(longer.computes.params), len(shorter.computes.params)) == (4, 3)
    assert added_by(longer, shorter) == pair.number
    assert added_by(shorter, longer) is None
    for order in ((longer, shorter), (shorter, longer)):
        made = compile_together(order, target)
        assert [o.number for o in made] == [0, 1]
        assert [len(o.signature["params"]) for o in made] == [
            len(s.computes.params) + 1 for s in order
        ]


def test_layers_without_a_partner() -> None:
    """Other channels, and kernels without an anchor, whose code would be the epilogue alone."""
    bb = BlockBuilder()
    x: Any = bb.param("x", (1, CHANNELS, 8, 8))
    plain = bb.emit("relu", x)
    y = bb.emit(
        "relu", bb.emit("add", x, bb.emit("max_pool", x, kernel=(3, 3), ceil_mode=False, **WINDOW))
    )
    assert pairs_of(sources_of(bb.finish([plain, y], ["a", "b"]), Target("aarch64"))) == []


def several(sizes: Mapping[int, Sequence[int]]) -> Function:
    """Layers of one input, by their output channels: each adds so many tensors."""
    draw = np.random.default_rng(0)
    bb = BlockBuilder()
    x: Any = bb.param("x", (1, CHANNELS, 12, 12))
    results: list[Any] = []
    terms = {n: [bb.param(f"t{n}{k}", (1, n, 12, 12)) for k in range(2)] for n in sizes}
    for channels, counts in sizes.items():
        for count in counts:
            weight = draw.standard_normal((channels, CHANNELS, 1, 1)).astype(np.float32)
            value = bb.emit("conv2d", x, weight, groups=1, **WINDOW | {"pads": (0,) * 4})
            for term in terms[channels][:count]:
                value = bb.emit("add", value, term)
            results.append(bb.emit("relu", value))
    return bb.finish(results, [f"y{n}" for n in range(len(results))])


@pytest.mark.parametrize(
    "sizes",
    [{64: (0, 1), 96: (1, 2), 128: (2,)}, {64: (0, 1, 2), 96: (0, 1, 2)}, {64: (2, 1), 96: (0,)}],
)
def test_among_layers_of_other_sizes(sizes: Mapping[int, Sequence[int]]) -> None:
    graph = several(sizes)
    models: list[CompiledModel] = []
    for share in (False, True):
        with mlc.PassContext(config={"compile.share": share, "compile.cache": False}):
            models.append(mlc.compile(graph, "host", workers=1))
    alone, together = models
    assert any(o.number is not None for o in (together.library.compiled or {}).values())
    inputs = every_input(alone, {})
    with mlc.connect("local://") as board:
        right, found = (board.load(model).run(inputs) for model in models)
    for name, expected in right.items():
        np.testing.assert_array_equal(found[name], expected)
