"""Kernels that share a function compute what they compute by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen.library import Library
from mlc_deploy.codegen.merge import merge
from mlc_deploy.driver import processes
from mlc_deploy.driver.cache import Cache
from mlc_deploy.driver.compare import compare
from mlc_deploy.driver.compile import CompiledModel
from mlc_deploy.driver.deploy import every_input
from mlc_deploy.driver.kernels import compile_sources
from mlc_deploy.driver.sharing import compile_together, sharing_of
from mlc_deploy.driver.workers import WorkerPool
from mlc_deploy.graph import BlockBuilder, Constant, Function
from mlc_deploy.graph.lower import KernelSource, Unscheduled, unscheduled
from mlc_deploy.ir import Expr
from mlc_targets import Target

BOARDS = {"host": "local://", "aarch64": "qemu://cortex-a72", "armv7a": "qemu://cortex-a7"}
ALONE = {"compile.share": False, "compile.cache": False}
TOGETHER = {"compile.share": True, "compile.cache": False}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path))
    yield tmp_path


def network(widths: list[int], side: int) -> Function:
    """Convolutions of 1x1, each followed by a depthwise one."""
    draw = np.random.default_rng(sum(widths))
    bb = BlockBuilder()
    value: Any = bb.param("x", (1, widths[0], side, side))
    plain: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (0,) * 4}
    for before, after in pairwise(widths):
        weight = draw.standard_normal((after, before, 1, 1)).astype(np.float32)
        value = bb.emit("relu", bb.emit("conv2d", value, weight, **plain))
        weight = draw.standard_normal((after, 1, 3, 3)).astype(np.float32)
        around = plain | {"groups": after, "pads": (1,) * 4}
        value = bb.emit("conv2d", value, weight, **around)
    return bb.finish([value], ["y"])


def functions(model: CompiledModel) -> int:
    """How many functions the kernels of a model are."""
    objects = model.library.compiled or {}
    return len({name if o.number is None else o.code for name, o in objects.items()})


def quantized(numbers: Sequence[tuple[float, int]], side: int = 6) -> Function:
    """Convolutions of int8 and sums of floats; each layer has its own scale and zero point."""
    draw = np.random.default_rng(side)
    bb = BlockBuilder()
    value: Any = bb.param("x", (1, 16, side, side), "int8")
    term = bb.param("z", (1, 16, side, side))
    plain: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (0,) * 4}
    for scale, zero in numbers:
        weight = draw.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8)
        sums = bb.emit("conv2d", value, weight, **plain)
        own = [Constant(np.asarray(n)) for n in (np.float32(scale), np.int8(zero))]
        value = bb.emit("requantize", sums, *own)
        total = bb.emit("add", bb.emit("dequantize", value, *own), term)
        value = bb.emit("quantize", total, *own)
    return bb.finish([value], ["y"])


def check(graph: Function, target: str) -> tuple[int, int]:
    """That a model computes the same bits with and without; how many functions it is."""
    models = []
    for config in (ALONE, TOGETHER):
        with mlc.PassContext(config=config):
            models.append(mlc.compile(graph, target, workers=1))
    by_itself, shared = models
    inputs = every_input(by_itself, {})
    with mlc.connect(BOARDS[target]) as board:  # run alone: `deploy` would time them, too
        right, outputs = (board.load(model).run(inputs)["y"] for model in models)
    assert compare(right, by_itself.evaluate(inputs)["y"]).ok
    np.testing.assert_array_equal(outputs, right)
    described, before = shared.metadata.kernels, by_itself.metadata.kernels
    for name, kernel in described.items():  # what callers see of a kernel stays as it is
        assert (kernel.params, kernel.tasks) == (before[name].params, before[name].tasks)
        assert kernel.scalars == ()
    return functions(by_itself), functions(shared)


@pytest.mark.parametrize("target", BOARDS)
def test_layers_that_differ_in_channels_share(target: str) -> None:
    alone, together = check(network([32, 64, 96, 128], 12), target)
    assert together < alone


@pytest.mark.parametrize("target", BOARDS)
def test_layers_that_differ_in_scales_and_zero_points_share(target: str) -> None:
    graph = quantized([(0.011, 3), (0.02, -5), (0.0137, 127), (0.5, -128)])
    alone, together = check(graph, target)
    assert together <= alone - 2


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 24).map(lambda n: 4 * n), min_size=3, max_size=3), st.integers(5, 9))
def test_random_layers_compute_the_same(widths: list[int], side: int) -> None:
    check(network(widths, side), "host")


Numbers = st.tuples(st.floats(2**-10, 2, width=32), st.integers(-128, 127))


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(Numbers, min_size=3, max_size=3), st.integers(3, 9))
def test_random_scales_compute_the_same(numbers: list[tuple[float, int]], side: int) -> None:
    check(quantized(numbers, side), "host")


def scaled(size: int, factor: float = 2.0) -> KernelSource:
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] * factor, name="y")
    return KernelSource(f"scaled{size}", te.create_prim_func([x, y]))


def names_of(
    sources: Mapping[str, KernelSource], target: Target, store: Cache | None = None
) -> list[tuple[str, ...]]:
    def unknown(alone: Sequence[str]) -> None:
        pass

    return list(sharing_of(sources, target, store, lambda source: source.digest, unknown).names)


def test_functions_of_the_user_share(own_cache: Path) -> None:
    target = Target("aarch64")
    sources = {"a": scaled(64), "b": scaled(96), "c": scaled(64, 3.0), "d": scaled(128)}
    store = Cache(own_cache / "shared")
    for _ in range(2):  # found out, and from the cache
        assert names_of(sources, target, store) == [("a", "b", "d"), ("c",)]
    for wrong in (b"", b"\xc1", b"\x90", b"\x94\x00\x00\x00\xc0"):
        for path in store.folder.glob("*/*"):
            store.put(bytes.fromhex(path.parent.name + path.name), wrong)
        assert names_of(sources, target, store) == [("a", "b", "d"), ("c",)]
    first = compile_sources(sources, target, {}, 1)
    second = compile_sources(sources, target, {}, 1)
    assert (first.cached, second.cached) == (0, 4)
    assert first.objects == second.objects
    assert [o.number for o in second.objects.values()] == [0, 1, None, 2]


def polynomial(first: float, degree: int) -> KernelSource:
    """With `degree` coefficients that differ where `first` does."""
    x = te.placeholder((64,), name="x")

    def value(i: Expr) -> Expr:
        total = x[i]
        for n in range(degree):
            total = total * x[i] + (first + n)
        return total

    y = te.compute((64,), value, name="y")
    return KernelSource(f"polynomial{degree}", te.create_prim_func([x, y]))


@pytest.mark.parametrize(("target", "degree", "groups"),
                         [("armv7a", 4, 1), ("armv7a", 5, 2), ("aarch64", 5, 1)])  # fmt: skip
def test_operands_that_leave_registers_free(target: str, degree: int, groups: int) -> None:
    sources = {name: polynomial(first, degree) for name, first in (("a", 0.5), ("b", 0.75))}
    assert len(names_of(sources, Target(target))) == groups


def test_each_kernel_is_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are scheduled to find out what shares are compiled as they are then."""
    begun: list[str] = []

    def counted(source: KernelSource, target: Target) -> Unscheduled:
        begun.append(source.name)
        return unscheduled(source, target)

    monkeypatch.setattr("mlc_deploy.graph.lower.unscheduled", counted)
    sources = {"a": scaled(64), "b": scaled(96), "c": scaled(128, 3.0)}
    compile_sources(sources, Target("aarch64"), {}, 1)
    assert sorted(begun) == ["scaled128", "scaled64", "scaled96"]


def test_processes_start_before_what_shares_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import meanwhile; and where the cache has all, none starts."""
    order: list[str] = []

    class Pool(WorkerPool):
        def __init__(self, count: int, **how: Any) -> None:
            order.append(f"{count} processes")
            super().__init__(count, **how)

    def noted(source: KernelSource, target: Target) -> Unscheduled:
        order.append(source.name)
        return unscheduled(source, target)

    monkeypatch.setattr(processes, "WorkerPool", Pool)
    monkeypatch.setattr("mlc_deploy.graph.lower.unscheduled", noted)
    sources = {f"f{n}": scaled(32 * n) for n in range(1, processes.FEW + 2)}
    compile_sources(sources, Target("aarch64"), {}, 2)
    assert order[0] == "2 processes" and "scaled32" in order[1:]
    order.clear()
    compile_sources(sources, Target("aarch64"), {}, 2)
    assert order == []


def test_the_same_function_twice_is_one_too() -> None:
    """Kernels whose plans differ in what does not show in their loops have no sizes that differ."""
    made = compile_together([scaled(64), scaled(64)], Target("aarch64"))
    assert [o.number for o in made] == [0, 1]
    merge([(("a", "b"), made[0].code)], b"")


def test_equal_objects_of_different_kernels() -> None:
    """Kernels of two groups whose plans differ in what does not show in their loops."""
    target = Target("aarch64")
    small, large = compile_together([scaled(64), scaled(96)], target)
    compiled = {"a": small, "b": large, "c": large, "d": small}
    with mlc.connect(BOARDS["aarch64"]) as board:
        module = board.load(Library("twice", target, tuple, compiled))
        for name, size in {"a": 64, "b": 96, "c": 96, "d": 64}.items():
            y = board.empty((size,))
            module[name](board.tensor(np.ones(size, np.float32)), y)
            np.testing.assert_array_equal(y.numpy(), np.full(size, 2, np.float32))


def test_a_cache_that_says_what_is_not_so() -> None:
    with pytest.raises(mlc.CodegenError) as caught:
        compile_together([scaled(64), scaled(1)], Target("aarch64"))
    text = "the cache says that kernels share a function that do not: scaled64, scaled1"
    assert text in str(caught.value) and "try: remove " in str(caught.value)


def test_watched_passes_see_each_kernel() -> None:
    sources = {"a": scaled(64), "b": scaled(96)}
    with mlc.PassContext(config={"lower.add_pass": [("final", lambda f: f)]}):
        made = compile_sources(sources, Target("aarch64"), {}, 1).objects
    assert [o.number for o in made.values()] == [None, None]


def test_tasks_are_counted_for_each() -> None:
    """A parallel loop has as many turns as the kernel's own sizes say."""
    graph = network([32, 64, 96], 12)
    with mlc.PassContext(config=ALONE):
        alone = mlc.compile(graph, "aarch64", workers=1)
    kernels = alone.program.kernels
    (several,) = [n for n in names_of(kernels, alone.target) if len(n) > 1][:1]
    made = compile_together([kernels[name] for name in several], alone.target)
    assert [o.signature["tasks"] for o in made] == [
        alone.metadata.kernels[name].tasks for name in several
    ]
