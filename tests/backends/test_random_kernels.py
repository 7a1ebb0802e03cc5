"""Random kernels by both back ends, on every machine: equal bits and statuses, whole guards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.ir import IRModule
from tests.backends.programs import (
    ARMS,
    CLANG,
    GCC,
    HOST,
    Answer,
    Machine,
    run_kernels,
    skip_reason,
)
from tests.backends.random_kernels import RandomKernel, kernel

BATCH = 40
FIRST = int(os.environ.get("MLC_SEED", "0"))
MANY = int(os.environ.get("MLC_KERNELS", "4000"))
Way = tuple[str, str, Machine, bool]
WAYS: tuple[Way, ...] = (  # what compiles, for which target of ours, as C or by LLVM
    ("gcc", "c", GCC, True),
    ("clang", "c", CLANG, True),
    ("clang", "x86_64", CLANG, True),
    ("llvm", "x86_64", HOST, False),
)


def differences(
    made: dict[str, RandomKernel], target: str, machine: Machine, folder: Path, as_c: bool
) -> Iterator[str]:
    lib = mlc.build(IRModule({name: k.func for name, k in made.items()}), target=target)
    cases = {name: k.case for name, k in made.items()}
    for name, answer in run_kernels(machine, lib, cases, folder, as_c).items():
        why = difference(made[name], answer)
        if why:
            yield f"{name}, target {target}, {machine.compiler[0]}: {why}\n{made[name].func}"


def difference(k: RandomKernel, found: Answer) -> str:
    if found.status != 0:
        return f"status {found.status}"
    if not found.whole:
        return "guard bytes are overwritten"
    for n, (mine, right) in enumerate(zip(found.arrays, k.expected, strict=True)):
        if not np.array_equal(mine, right, equal_nan=right.dtype.kind == "f"):
            (where, *_), more = np.nonzero(mine.ravel() != right.ravel())[0], ""
            place = f"parameter {n}, element {where} of {mine.size}"
            return f"{place}: {mine.ravel()[where]}, not {right.ravel()[where]}{more}"
    return ""


def check(seeds: range, folder: Path, ways: tuple[Way, ...]) -> None:
    made = {f"kernel_{seed}": kernel(seed) for seed in seeds}
    made = {k.func.name: k for k in made.values()}
    wrong: list[str] = []
    for number, (_, target, machine, as_c) in enumerate(ways):
        wrong += differences(made, target, machine, folder / f"{seeds.start}_{number}", as_c)
    assert not wrong, "\n\n".join(wrong[:5])


def arm_ways(name: str) -> tuple[Way, ...]:
    return ((name, ARMS[name].target, ARMS[name], False),)


@pytest.mark.skipif(bool(skip_reason(GCC, CLANG)), reason=skip_reason(GCC, CLANG))
def test_some(tmp_path: Path) -> None:
    check(range(BATCH), tmp_path, WAYS)


@pytest.mark.parametrize("arm", ARMS)
def test_some_on_arm(arm: str, tmp_path: Path) -> None:
    if reason := skip_reason(ARMS[arm]):
        pytest.skip(reason)
    check(range(BATCH), tmp_path, arm_ways(arm))


@pytest.mark.backends
@pytest.mark.parametrize("batch", range(MANY // BATCH))
def test_many(batch: int, tmp_path: Path) -> None:
    """Every fourth batch on each of the ARMs, too."""
    if reason := skip_reason(GCC, CLANG):
        pytest.skip(reason)
    first = FIRST + BATCH * (batch + 1)
    ways = WAYS
    for turn, arm in enumerate(ARMS):
        if batch % 4 == turn and not skip_reason(ARMS[arm]):
            ways = (*ways, *arm_ways(arm))
    check(range(first, first + BATCH), tmp_path, ways)
