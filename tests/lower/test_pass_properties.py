"""Every loop pass, in every order that is legal, keeps what a function computes."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ir.verify import verify
from mlc_deploy.lower import LLVM_STEPS, STEPS
from mlc_deploy.lower.dimensions import bind_dimensions
from mlc_deploy.lower.machine import C_STEPS, bind_target
from mlc_deploy.lower.pipeline import NEEDS, Step
from mlc_deploy.passes.context import ALWAYS, LEVELS, run_passes
from tests.lower.drawn_functions import function

LIST: tuple[Step, ...] = tuple(s for s in (*STEPS, *LLVM_STEPS, *C_STEPS) if not isinstance(s, str))
REQUIRED = tuple(s for s in LIST if LEVELS[s.__name__] == ALWAYS)
OPTIONAL = tuple(s for s in dict.fromkeys(LIST) if s not in REQUIRED)
MACHINES = tuple(map(mlc.Target, ("aarch64", "armv7a", "x86_64 -mcpu=haswell")))
CHECKED = {"lower.bound_check": True}


def order(rng: Random) -> list[Step]:
    """The passes that programs need, in their order; anywhere between them the others, none or up
    to three times, but after what they need."""
    found = list(REQUIRED)
    for step in OPTIONAL:
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            needed = NEEDS.get(step.__name__, ())
            first = max((n + 1 for n, s in enumerate(found) if s.__name__ in needed), default=0)
            last = found.index(C_STEPS[0])  # which leaves no vectors, and no machine but C
            found.insert(rng.randint(first, last), step)
    return found


def transformed(
    func: PrimFunc, steps: list[Step], rng: Random, changed: set[str], checked: bool
) -> PrimFunc:
    def watch(name: str, _: PrimFunc, new: bool) -> None:
        changed.update([name] if new else [])

    bound = bind_target(bind_dimensions(func), rng.choice(MACHINES))
    with mlc.PassContext(opt_level=4, config=CHECKED if checked else {}):
        return run_passes("lower", bound, steps, verify, watch)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 24), st.booleans())
def test_any_passes_in_any_legal_order(seed: int, checked: bool) -> None:
    rng, drawn = Random(seed), function(seed)
    drawn.check(transformed(drawn.func, order(rng), rng, set(), checked))


def test_the_functions_hold_what_every_pass_looks_for() -> None:
    """A pass that changes none of them would not be tested: draw what it is for."""
    changed: set[str] = set()
    wanted = {s.__name__ for s in LIST}
    for seed in range(300):
        drawn, other = (
            function(seed),
            Random(seed + 1),
        )  # a kind on any machine
        transformed(drawn.func, list(LIST), other, changed, seed % 2 == 0)
        if changed == wanted:
            return
    assert sorted(wanted - changed) == []


def test_what_passes_need_are_passes() -> None:
    known = {s.__name__ for s in LIST}
    assert known.issuperset([*NEEDS, *(n for needed in NEEDS.values() for n in needed)])
