"""The page of errors of functions: complete, within its promise, and true."""

from __future__ import annotations

import pytest

from mlc_deploy.ops.elementwise import FLOAT, TABLE
from mlc_deploy.ops.special import SPECIAL
from scripts.float_errors import (
    COLUMNS,
    FUNCTIONS,
    PLACES,
    Place,
    halves,
    measured,
    patterns,
    written,
)
from tests.sessions import board_named

FEW = 1 << 16
BOARDS = {"x86-64": "local", "AArch64": "aarch64", "ARMv7": "armv7"}
APPROXIMATE = ("fast_exp", "fast_tanh", "fast_erf")  # on request alone: ops/fast.py
HALF = 0.51  # an ulp of float16: computed in float32, rounded once


def test_the_page_has_every_function_of_a_float() -> None:
    functions = {
        e.name
        for e in (*TABLE, *SPECIAL)
        if e.kinds == FLOAT and e.inputs == 1 and not e.gives_bool and e.name not in APPROXIMATE
    }
    assert functions <= FUNCTIONS.keys()
    assert list(written()) == list(FUNCTIONS)


def test_the_page_is_within_its_promise() -> None:
    for name, row in written().items():
        for column, error in row.items():
            most = max(FUNCTIONS[name].most, HALF) if column == "float16" else FUNCTIONS[name].most
            assert error <= most, f"{name}, {column}: {error}"


def test_no_error_is_above_the_pages(request: pytest.FixtureRequest) -> None:
    """Of few numbers and the ends, where code differs most from this machine's."""
    check(PLACES[-1], FEW, request)


@pytest.mark.patterns
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_pattern(name: str, request: pytest.FixtureRequest) -> None:
    """All 2^32 patterns of float32, on this machine: within the promise."""
    session = board_named(request, BOARDS[PLACES[0].title])
    worst = measured(session, PLACES[0], [name], patterns(1 << 32))[name]
    assert worst.error <= FUNCTIONS[name].most, str(worst)


@pytest.mark.numbers
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.title)
def test_the_page_is_current(place: Place, request: pytest.FixtureRequest) -> None:
    check(place, 1 << 22, request)


def check(place: Place, count: int, request: pytest.FixtureRequest) -> None:
    session, page = board_named(request, BOARDS[place.title]), written()
    wrong = []
    for column, pieces in ((place.title, patterns(count)), (COLUMNS[-1], halves())):
        for name, worst in measured(session, place, FUNCTIONS, pieces).items():
            if worst.error > page[name][column]:
                wrong.append(f"{name}, {column}: {worst}; the page has {page[name][column]}")
    assert not wrong, "\n".join(wrong)
