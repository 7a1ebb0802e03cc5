"""Every pass, in every order, keeps what a graph computes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.graph import Function, evaluate, optimize, verify
from mlc_deploy.graph.passes import PASSES, Pass, canonicalize_quantized
from tests.graph.drawn_graphs import graph
from tests.graph.small_graphs import inputs_of

EACH: tuple[Pass, ...] = tuple(dict.fromkeys((*PASSES, canonicalize_quantized)))
SEEDS = st.integers(0, 1 << 24)


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


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.data())
def test_any_passes_in_any_order(seed: int, data: st.DataObject) -> None:
    function = graph(seed)
    chosen = data.draw(st.lists(st.sampled_from(EACH), min_size=1, max_size=6))
    with mlc.PassContext(opt_level=4):
        result = optimize(function, chosen)
    verify(result)
    compare(function, result, seed, 5e-3 if "fast_math" in str(chosen) else 2e-4)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 4))
def test_the_whole_list(seed: int, level: int) -> None:
    function = graph(seed, calls=20)
    with mlc.PassContext(opt_level=level):
        result = optimize(function, (canonicalize_quantized, *PASSES))
        # All that can be done is done: another round finds little, and nothing wrong.
        again = optimize(result, PASSES)
    for made in (result, again):
        compare(function, made, seed, 5e-3 if level == 4 else 2e-4)


@pytest.mark.parametrize("step", EACH, ids=lambda p: p.__name__)
def test_nothing_to_do_gives_the_same_object(step: Pass) -> None:
    """What a pass has done once, it does not do again."""
    changed = 0
    for seed in range(30):
        function = graph(Random(seed).randrange(1 << 24))
        once = step(function)
        changed += once is not function
        assert step(once) is once
    # Quantized pairs are not among what is drawn, few calls are dead or alike by chance, and few
    # layers have results that lie in one piece of a larger one.
    quantized = ("canonicalize_quantized", "tabulate")
    alike = ("eliminate_common_subexpressions", "combine_parallel_layers")
    rare = (*quantized, "eliminate_dead_code", *alike)
    assert changed or step.__name__ in rare
