"""CPU levels: what their text means, and which of them a board should run."""

import pytest

from mlc_targets import BASE, Target, TargetError, best_level, levels_of

NEON = {"fp-armv8", "neon"}


def test_each_level_has_the_ones_before_it() -> None:
    levels = levels_of("aarch64:base,dotprod,fullfp16+i8mm")
    assert [name for name, _ in levels] == ["base", "dotprod", "fullfp16+i8mm"]
    base, dotprod, last = (target for _, target in levels)
    assert base == Target("aarch64")
    assert dotprod == Target("llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod")
    assert set(last.required_features) >= NEON | {"dotprod", "fullfp16", "i8mm"}


@pytest.mark.parametrize(
    "text",
    ["armv7a", "llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon", '{"kind": "llvm"}', "host"],
)
def test_no_levels(text: str) -> None:
    assert levels_of(text) == ((BASE, Target(text)),)


def test_a_board_with_more_is_no_longer_that_board() -> None:
    (_, base), (_, dotprod) = levels_of("raspberry-pi/4b-aarch64:base,dotprod")
    assert base.tag == "raspberry-pi/4b-aarch64" and dotprod.tag == ""
    assert dotprod.mcpu == base.mcpu and dotprod.num_cores == base.num_cores


def test_best_level() -> None:
    targets = [target for _, target in levels_of("aarch64:base,dotprod,i8mm")]

    def best(machine: str, *features: str) -> int:
        return best_level(targets, machine, frozenset({*NEON, *features}))

    assert best("aarch64") == 0
    assert best("aarch64", "dotprod") == 1
    assert best("aarch64", "dotprod", "i8mm") == 2
    assert best("aarch64", "i8mm") == 0  # the last level has dot products as well
    assert best("x86_64", "dotprod") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "aarch64:base,,i8mm",
            "a level has no name\n  in:  aarch64:base,,i8mm\n  try: aarch64:base,dotprod",
        ),
        (
            "aarch64:base,dotprod,dotprod",
            "the level 'dotprod' is named twice\n  in:  aarch64:base,dotprod,dotprod\n  try: once",
        ),
        (
            "aarch64:dotprod,base",
            "'base' adds nothing to the levels before it\n"
            "  in:  aarch64:dotprod,base\n  try: it first",
        ),
        (
            "aarch64:base,dotprd",
            "unknown mattr '+dotprd' for aarch64\n  in:  aarch64:base,dotprd\n  try: +dotprod",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(TargetError) as refused:
        levels_of(text)
    assert str(refused.value) == message
