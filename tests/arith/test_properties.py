"""The integer reasoning against plain evaluation at every point of small boxes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy.arith import Known, bounds, equal, expr_bounds, linear, simplify_expr, to_expr
from mlc_deploy.arith.regions import region_under, relax, union
from mlc_deploy.ir import (
    Buffer,
    Expr,
    Region,
    Var,
    all_of,
    any_of,
    compare,
    const,
    is_const,
    not_,
    select,
    walk,
)
from tests.arith.expressions import (
    COMPARISONS,
    VARIABLES,
    Box,
    boxes,
    indices,
    integers,
    points,
    value,
)

many = settings(max_examples=300, deadline=None)
comparisons = st.builds(compare, st.sampled_from(COMPARISONS), integers, integers)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(all_of, inner, inner), st.builds(any_of, inner, inner), st.builds(not_, inner)
    ),
    max_leaves=4,
)


def same_everywhere(a: Expr, b: Expr, box: Box) -> None:
    for at in points(box):
        assert value(a, at) == value(b, at), f"{a} is not {b} at {at}"


@many
@given(st.one_of(integers, indices), boxes())
def test_simplified_is_equal(e: Expr, box: Box) -> None:
    same_everywhere(e, simplify_expr(e, box), box)


def test_an_index_that_is_cut_twice_is_put_together() -> None:
    i = Var("i")
    within = {i: (0, 63)}
    assert equal(i // 8 * 8 + i % 8 // 2 * 2 + i % 8 % 2, i, within)
    assert equal((i + 3) % 8 // 2 * 6 + (i + 1) % 2 * 3, (i + 3) % 8 * 3, within)


@many
@given(st.one_of(integers, indices), boxes())
def test_simplifying_again_changes_nothing(e: Expr, box: Box) -> None:
    """Else two programs that are equal would look different, depending on how often a pass ran."""
    once = simplify_expr(e, box)
    assert str(simplify_expr(once, box)) == str(once)


@many
@given(conditions, boxes())
def test_simplified_condition_is_equal(e: Expr, box: Box) -> None:
    same_everywhere(e, simplify_expr(e, box), box)


@many
@given(st.one_of(integers, indices), boxes())
def test_normal_form_is_equal(e: Expr, box: Box) -> None:
    same_everywhere(e, to_expr(linear(e, box), "int32"), box)


@many
@given(
    st.lists(st.one_of(integers, indices, conditions), min_size=1, max_size=3), st.lists(boxes())
)
def test_what_followed_from_other_ranges_is_forgotten(es: list[Expr], found: list[Box]) -> None:
    known = Known()
    for box in found:
        for v, of in box.items():
            known.bind(v, of)
        for e in es:
            assert str(simplify_expr(e, known)) == str(simplify_expr(e, box))
            if e.dtype == "int32":
                assert linear(e, known) == linear(e, box)


@many
@given(st.one_of(integers, indices), boxes())
def test_bounds_hold_every_value(e: Expr, box: Box) -> None:
    low, high = expr_bounds(e, box)
    for at in points(box):
        assert low is None or low <= value(e, at)
        assert high is None or value(e, at) <= high


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 5), st.integers(1, 5))
def test_bounds_of_a_quotient_by_a_variable(low: int, more: int, least: int, others: int) -> None:
    a, b = Var("a", "int32"), Var("b", "int32")
    high, most = low + more, least + others
    values = [x // y for x in range(low, high + 1) for y in range(least, most + 1)]
    assert expr_bounds(a // b, {a: (low, high), b: (least, most)}) == (min(values), max(values))
    assert expr_bounds(a // b, {a: (low, high), b: (0, most)}) == (None, None)


@many
@given(indices, boxes())
def test_bounds_of_indices_are_known(e: Expr, box: Box) -> None:
    low, high = bounds(linear(e, box), box)
    assert low is not None and high is not None


@many
@given(indices, indices, boxes())
def test_equal_is_certain(a: Expr, b: Expr, box: Box) -> None:
    if equal(a, b, box):
        same_everywhere(a, b, box)


@many
@given(integers, boxes())
def test_bounds_decide_comparisons(e: Expr, box: Box) -> None:
    low, high = expr_bounds(e, box)
    if high is not None:
        assert is_const(simplify_expr(compare("<=", e, high), box), True)
        assert is_const(simplify_expr(compare(">", e, high), box), False)
    if low is not None:
        assert is_const(simplify_expr(compare(">=", e, low), box), True)
        assert is_const(simplify_expr(compare("<", e, low), box), False)


subsets = st.sets(st.sampled_from(VARIABLES))


@many
@given(st.one_of(integers, indices), boxes(), subsets, st.integers(1, 3))
def test_relaxed_interval_covers(e: Expr, box: Box, over: set[Var], extent: int) -> None:
    relaxed = {v: box[v] for v in box if v in over}
    rest = {v: box[v] for v in box if v not in over}
    found = relax(e, extent, relaxed, rest)
    if found is None:
        return
    minimum, size = found
    for at in points(box):
        low = value(minimum, at)
        assert low <= value(e, at) and value(e, at) + extent <= low + size
    assert not any(n in relaxed for n in walk(minimum))


@many
@given(indices, boxes(), subsets, st.integers(1, 40))
def test_region_covers_what_is_in_the_buffer(e: Expr, box: Box, over: set[Var], size: int) -> None:
    buffer = Buffer("B", (size,))
    relaxed = {v: box[v] for v in box if v in over}
    rest = {v: box[v] for v in box if v not in over}
    ((low, extent),) = region_under(Region(buffer, (e,), (const(1),)), {}, relaxed, rest)
    for at in points(box):
        place = value(e, at)
        if 0 <= place < size:
            assert value(low, at) <= place < value(low, at) + value(extent, at)


@many
@given(indices, indices, st.integers(1, 5), st.integers(1, 5), boxes())
def test_union_covers_both(a: Expr, b: Expr, m: int, n: int, box: Box) -> None:
    size = 1000
    ((low, extent),) = union([(a, const(m))], [(b, const(n))], [size], box)
    for at in points(box):
        for start, count in ((a, m), (b, n)):
            first = value(start, at)
            if 0 <= first <= size - count:
                assert value(low, at) <= first
                assert first + count <= value(low, at) + value(extent, at)


@pytest.mark.parametrize("width", [7, 14])
def test_pixels_of_cut_rows_are_one_row(width: int) -> None:
    """What a quotient and a remainder take apart is put together again, though the remainder's
    coefficients are those of the quotient only up to multiples of the divisor."""
    tile, pixel = Var("tile", "int32"), Var("pixel", "int32")
    at = tile * 10 + pixel
    flat = at // width * width + at % width
    assert str(simplify_expr(flat // 2, {tile: (0, 4), pixel: (0, 9)})) == "tile * 5 + pixel // 2"


@pytest.mark.parametrize("sizes", [(20, 7, 7), (9, 5, 5), (3, 7, 7, 7), (4, 13, 13)])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_vectors_of_a_tensor_are_one_row(sizes: tuple[int, ...], lanes: int) -> None:
    """An index taken apart into dimensions that vectors do not divide is one index in memory; a
    remainder shows a vector's length up to multiples of its divisor, also within a quotient."""
    turn, lane = Var("turn", "int32"), Var("lane", "int32")
    whole = turn * lanes + lane
    at: Expr = const(0)
    rest, stride = whole, 1
    for size in reversed(sizes[1:]):
        at, rest, stride = at + rest % size * stride, rest // size, stride * size
    ranges = {turn: (0, 1000), lane: (0, lanes - 1)}
    assert equal(at + rest * stride, whole, ranges)


def test_a_deep_expression_may_hold_infinity() -> None:
    """Of floats nothing is asked, and no integer is as large."""
    x, i = Var("x", "float32"), Var("i", "int32")
    e: Expr = i
    for k in range(100):
        e = select(compare("<", x + float(k), const(math.inf, "float32")), e + 1, const(0))
    assert simplify_expr(e, {}).dtype == "int32"
