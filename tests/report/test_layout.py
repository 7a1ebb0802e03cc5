"""Where nodes of graphs are drawn: below what they depend on, and none over another."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlc_deploy.report.layout import NARROW, laid_out
from mlc_deploy.report.svg import Scale

EDGES = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60)
    )
)


@given(EDGES)
def test_rows_and_columns(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    count, pairs = drawn
    edges = {(min(p), max(p)) for p in pairs if p[0] != p[1]}
    layout = laid_out(count, edges)
    for a, b in edges:
        assert layout.at[a][1] < layout.at[b][1]
        rows = [layout.at[a][1], *(row for _, row in layout.through[a, b]), layout.at[b][1]]
        assert rows == list(range(rows[0], rows[-1] + 1))
    places = [(x, row, 1.0) for x, row in layout.at]
    places += [(x, row, NARROW) for way in layout.through.values() for x, row in way]
    for (x, row, width), (x2, row2, width2) in itertools.combinations(places, 2):
        assert row != row2 or abs(x - x2) >= (width + width2) / 2 - 1e-6
    assert all(w / 2 - 1e-6 <= x <= layout.width - w / 2 + 1e-6 for x, _, w in places)
    assert all(0 <= row < layout.rows for _, row, _ in places)


def test_a_chain_is_a_line_and_its_shortcut_goes_beside_it() -> None:
    layout = laid_out(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    xs = [x for x, _ in layout.at]
    assert max(xs[1:3]) - min(xs[1:3]) < 1e-6
    beside = [x for x, _ in layout.through[0, 3]]
    assert all(abs(x - xs[1]) >= (1 + NARROW) / 2 - 1e-6 for x in beside)
    assert laid_out(0, []).rows == 0


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e5), st.booleans(), st.integers(2, 10))
def test_ticks_are_few_and_within(low: float, factor: float, log: bool, most: int) -> None:
    scale = Scale(low, low * factor, 0, 100, log)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert all(-0.1 <= scale(t) <= 100.1 for t in ticks)
    assert scale(low) == 0 and abs(scale(low * factor) - 100) < 1e-6
