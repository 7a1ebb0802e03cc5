"""Every pass, in every order, keeps what a graph computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.driver.model_graph import NEEDS, graph_steps
from mlc_deploy.graph import Function, evaluate, optimize, verify
from mlc_deploy.graph.passes import PASSES, Pass, canonicalize_quantized
from tests.graph.drawn_graphs import attention_graph, graph, layers_graph, wide_graph
from tests.graph.drawn_programs import program_graph
from tests.graph.small_graphs import inputs_of

TARGETS = (
    "aarch64",
    "armv7a",
    "x86_64",
    "x86_64 -mcpu=cascadelake",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
)
ERROR, APPROXIMATE, HALF = 2e-4, 5e-3, 5e-2  # of the largest, by passes: all, fast_math, float16


def passes_for(target: str, precision: str = "float32") -> tuple[Pass, ...]:
    """Every pass of the list that a model goes through, and the one before it."""
    steps = graph_steps(mlc.Target(target), precision)
    found = (canonicalize_quantized, *(s for s in steps if not isinstance(s, str)))
    return tuple({p.__name__: p for p in found}.values())


EACH = {target: passes_for(target) for target in TARGETS}
HALVES = passes_for(TARGETS[-1], "float16")
GRAPHS = (graph, graph, layers_graph, program_graph, wide_graph, attention_graph)
SEEDS = st.integers(0, 1 << 24)


@pytest.fixture(scope="module", autouse=True)
def _rows_of_eight_are_long() -> Iterator[None]:
    """Drawn normalizations are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlc_deploy.graph.long_norms.LONG", 8)
        yield


def compare(before: Function, after: Function, seed: int, error: float) -> None:
    """Integers exactly; floats within an error of the value, and of the largest."""
    inputs = inputs_of(before, seed)
    expected, found = evaluate(before, inputs), evaluate(after, inputs)
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(found[name], wanted)
            continue
        finite = np.abs(wanted[np.isfinite(wanted)])
        limit = error * max(float(finite.max(initial=0)), 0.1)
        np.testing.assert_allclose(found[name], wanted, rtol=5 * error, atol=limit)


def legal(chosen: list[Pass], passes: tuple[Pass, ...]) -> list[Pass]:
    """The chosen passes, what one of them needs first."""
    by_name = {p.__name__: p for p in passes}
    needed = [by_name[n] for p in chosen for n in NEEDS.get(p.__name__, ())]
    return [*dict.fromkeys(needed), *chosen]


def test_what_passes_need_are_passes() -> None:
    known = {p.__name__ for p in EACH["aarch64"]}
    assert known.issuperset([*NEEDS, *(n for needed in NEEDS.values() for n in needed)])


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.sampled_from(GRAPHS), st.sampled_from(TARGETS), st.data())
def test_any_passes_in_any_order(
    seed: int, make: Callable[[int], Function], target: str, data: st.DataObject
) -> None:
    function = make(seed)
    passes = EACH[target]
    chosen = legal(data.draw(st.lists(st.sampled_from(passes), min_size=1, max_size=8)), passes)
    with mlc.PassContext(opt_level=4):
        result = optimize(function, chosen)
    verify(result)
    compare(function, result, seed, APPROXIMATE if "fast_math" in str(chosen) else ERROR)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.data())
def test_any_passes_of_float16(seed: int, data: st.DataObject) -> None:
    function = graph(seed)
    chosen = data.draw(st.lists(st.sampled_from(HALVES), min_size=1, max_size=8))
    with mlc.PassContext(opt_level=4):
        result = optimize(function, chosen)
    compare(function, result, seed, HALF)


def test_the_graphs_hold_what_every_pass_looks_for() -> None:
    """A pass that changes none of them would not be tested: draw what it is for."""
    changed: set[str] = set()
    wanted = {p.__name__ for passes in (*EACH.values(), HALVES) for p in passes}

    def watch(name: str, _: Function, new: bool) -> None:
        changed.update([name] if new else [])

    for seed in range(400):
        passes = (*EACH.values(), HALVES)[seed % (len(TARGETS) + 1)]
        with mlc.PassContext(opt_level=4):
            optimize(GRAPHS[seed // len(GRAPHS) % len(GRAPHS)](seed), passes, watch)
        if changed == wanted:
            return
    assert sorted(wanted - changed) == []


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 4))
def test_the_whole_list(seed: int, level: int) -> None:
    function = graph(seed, calls=20)
    with mlc.PassContext(opt_level=level):
        result = optimize(function, (canonicalize_quantized, *PASSES))
        # All that can be done is done: another round finds little, and nothing wrong.
        again = optimize(result, PASSES)
    for made in (result, again):
        compare(function, made, seed, APPROXIMATE if level == 4 else ERROR)


@pytest.mark.parametrize("step", EACH["aarch64"], ids=lambda p: p.__name__)
def test_nothing_to_do_gives_the_same_object(step: Pass) -> None:
    """What a pass has done once, it does not do again."""
    for seed in range(30):
        once = step(GRAPHS[seed % len(GRAPHS)](seed))
        assert step(once) is once
