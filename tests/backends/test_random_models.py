"""Random models with loops and states by both back ends, on every machine, against onnxruntime:
numbers, statuses, whole guards. gcc's and clang's C agree by bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError, ImporterError
from mlc_deploy.frontend import from_onnx
from tests.backends.programs import (
    ARMS,
    CLANG,
    GCC,
    HOST,
    Machine,
    Result,
    run_models,
    skip_reason,
)
from tests.backends.random_models import Program, programs
from tests.differential.test_random_onnx import assert_close

BATCH = 16
FIRST = int(os.environ.get("MLC_SEED", "0"))
MANY = int(os.environ.get("MLC_MODELS", "1000"))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models compile here: processes that do it would import everything again."""
    monkeypatch.setattr("mlc_deploy.driver.processes.cores", lambda: 1)


def compiled(program: Program, target: str) -> mlc.CompiledModel | None:
    """None where the compiler refuses it: it needs a size that only a run knows."""
    try:
        function = from_onnx(program.model, dims=program.dims)
        return mlc.compile(function, target, states=program.states)
    except (ImporterError, GraphError):
        assert program.dims
        return None


def results(
    of: list[Program], target: str, machines: list[Machine], folder: Path
) -> list[tuple[Program, list[list[Result]]]]:
    """Each program that compiles with the results of its runs on each of the machines."""
    made = [(p, m) for p in of if (m := compiled(p, target)) is not None]
    models = [(model, [inputs for inputs, _ in p.runs]) for p, model in made]
    found = [
        run_models(machine, models, folder / f"{machine.compiler[0]}_{machine.target.split()[-1]}")
        for machine in machines
    ]
    return [(p, [of_one[n] for of_one in found]) for n, (p, _) in enumerate(made)]


def difference(program: Program, found: list[Result]) -> str:
    for number, ((_, right), (answer, outputs)) in enumerate(zip(program.runs, found, strict=True)):
        if answer.status != 0:
            return f"run {number}: status {answer.status}"
        if not answer.whole:
            return f"run {number}: guard bytes are overwritten"
        for name, expected in right.items():
            mine = outputs[name]
            if mine.shape != expected.shape or mine.dtype != expected.dtype:
                return f"run {number}: {name} is {mine.dtype}{mine.shape}"
            try:
                assert_close(mine, expected, name)
            except AssertionError as error:
                return f"run {number}: {error}"
    return ""


def differing_bits(one: list[Result], other: list[Result]) -> str:
    for number, ((_, a), (_, b)) in enumerate(zip(one, other, strict=True)):
        for name, mine in a.items():
            if mine.tobytes() != b[name].tobytes():
                return f"run {number}: gcc and clang differ in {name}"
    return ""


def check(number: int, count: int, arms: list[str], folder: Path) -> None:
    of = programs(number, count)
    assert len(of) >= count // 2
    ways = [
        ("c", [GCC, CLANG]),
        ("x86_64", [HOST]),
        *((ARMS[arm].target, [ARMS[arm]]) for arm in arms),
    ]
    wrong = []
    for target, machines in ways:
        for program, found in results(of, target, machines, folder):
            why = difference(program, found[0])
            why = why or (differing_bits(*found) if len(found) == 2 else "")
            if why:
                wrong.append(f"target {target}, {why}\n{program.text()}")
    assert not wrong, "\n\n".join([f"batch {number}: {len(wrong)} differ", *wrong[:5]])


@pytest.mark.skipif(bool(skip_reason(GCC, CLANG)), reason=skip_reason(GCC, CLANG))
def test_some(tmp_path: Path) -> None:
    check(0, 6, [], tmp_path)


@pytest.mark.backends
@pytest.mark.parametrize("batch", range(FIRST, FIRST + MANY // BATCH))
def test_many(batch: int, tmp_path: Path) -> None:
    """Every batch on one of the ARMs, too."""
    if reason := skip_reason(GCC, CLANG):
        pytest.skip(reason)
    arm = list(ARMS)[batch % len(ARMS)]
    check(batch + 1, BATCH, [] if skip_reason(ARMS[arm]) else [arm], tmp_path)
