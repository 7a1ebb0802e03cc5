"""Tuning by predicted time: what a schedule costs, that results by other figures are kept apart,
and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from mlc_deploy import tune
from mlc_deploy.board.connect import connect
from mlc_deploy.cli.report_page import _tasks
from mlc_deploy.cli.tune import OBJECTIVES
from mlc_deploy.cli.tune_report import OBJECTIVES as WORDS
from mlc_deploy.cli.tune_report import UNITS
from mlc_deploy.driver.builder import KERNEL, build_object
from mlc_deploy.errors import TuneError
from mlc_deploy.ir import structural_hash
from mlc_deploy.predict.model import layer_ms, work_of
from mlc_deploy.report import tuning_page
from mlc_deploy.tune.boards import BoardPool
from mlc_deploy.tune.runner import EMULATED_TIMES, Request, run_limit
from mlc_deploy.tune.space import default_candidate
from mlc_deploy.tuned import Database, Measured, Objective, Record, pack
from mlc_targets import Target
from mlc_targets.caches import caches_for
from mlc_targets.cores import core_names, speed
from tests.tune.searches import matmul, matmul_task

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)
QEMU = "qemu://cortex-a72"
PI = "raspberry-pi/4b"


def tuned(database: Database, trials: int = 2, **options: object) -> Database:
    how = {"strategy": "random", "runner": QEMU, "objective": "predicted"} | options
    return tune.tune_tir(matmul(), PI, trials, 2, database=database, **how)  # type: ignore[arg-type]


@needs_qemu
def test_the_cost_is_the_time_on_the_targets_core(tmp_path: Path) -> None:
    """And results of other objectives, or by other figures, stand beside it in one database."""
    database = tuned(Database(tmp_path / "t.jsonl"))
    first = database.records[0]
    assert first.objective == "predicted" and first.measured.timing == "predicted"
    assert first.board.startswith("emulated aarch64, ")
    assert ", predicted for cortex-a72 at 1800 MHz, figures " in first.board

    task = matmul_task(target=Target(PI))
    known = speed("cortex-a72", "bcm2711")
    assert known is not None
    code = build_object(task.default(task.func), task.target)
    with connect(QEMU, caches=caches_for("cortex-a72")) as session:
        kernel = session.load(code)[KERNEL]
        tensors = [session.random((32, 32)) for _ in range(3)]
        kernel.profile(*tensors)
        (counts,) = kernel.profile(*tensors).counts or ()
    ms = layer_ms(work_of(counts.by_class, counts.misses, known), known)
    made = default_candidate(task)
    assert made is not None
    (default,) = [r for r in database.records if r.program == made.program]
    assert default.cost == pytest.approx(ms / 1e3, rel=0.02)  # but for where tensors lie
    assert default.measured.instructions == counts.total

    before = len(database)
    tuned(database)
    assert len(database) == before  # all was known
    tuned(database, objective="instructions")
    counted = [r for r in database.records if r.objective == "instructions"]
    assert len(counted) == before and len(database) == 2 * before
    tuned(database, speed=replace(known, line_ns=2 * known.line_ns))
    assert len(database) == 3 * before and len({r.board for r in database.records}) == 3
    again = Database(tmp_path / "t.jsonl")
    assert again.records == database.records and not again.notes
    best = again.best(structural_hash(task.func), str(Target(PI)))
    assert best is not None and best.objective == "predicted"

    page = tuning_page("t.jsonl", _tasks(database), [])
    assert "Costs are predicted seconds (no board has measured them) of one call." in page
    assert "Costs are executed instructions of one call." in page


@needs_qemu
def test_a_board_without_caches_is_told() -> None:
    with BoardPool([QEMU]) as pool:
        database = tuned(Database(), runner=pool)
    assert {r.measured.verdict for r in database.records} == {"refused"}
    assert database.records[0].measured.message == "the board simulates no caches"


def result(objective: Objective, cost: float, program: str) -> Record:
    measured = (
        Measured("ok", (), int(cost), "emulated")
        if objective == "instructions"
        else Measured("ok", (cost,))
    )
    on = f"a board, {objective}"
    return Record("t", "w", "T", on, objective, "r", program, pack("[]"), measured)


def test_what_was_measured_counts_most_and_instructions_least() -> None:
    database = Database()
    database.add([result("instructions", 100, "a"), result("predicted", 1e-6, "b"),
                  result("seconds", 1e-3, "c"), result("predicted", 1e-7, "d")])  # fmt: skip
    assert [r.program for r in database.query("w", "T")] == ["c", "d", "b", "a"]


def test_every_objective_has_its_words() -> None:
    assert OBJECTIVES == get_args(Objective) == tuple(WORDS) == tuple(UNITS)


def test_an_emulator_may_take_longer_than_the_core() -> None:
    request = Request("t", "w", b"", None, (), "predicted", 1e-3, seconds=600.0)
    assert run_limit(request) == 100 * EMULATED_TIMES * 1e-3


def test_cores_that_nothing_is_known_of_are_refused() -> None:
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(matmul(), "aarch64", 2, strategy="random", runner=QEMU, objective="predicted")
    assert str(refusal.value) == (
        "nothing is known of how fast the core 'generic' is\n"
        f"  in:  {Target('aarch64')}\n"
        f"  try: objective instructions, or a target with one of {', '.join(core_names())}"
    )
