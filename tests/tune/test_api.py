"""Tuning as users call it, on a board of this machine, and compiling with what came of it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import Schedule, te, tune
from mlc_deploy.errors import ScheduleError, TuneError
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.ir import structural_hash
from mlc_deploy.schedule.trace import Trace
from mlc_deploy.tuned import Measured, Record, pack
from mlc_rpc import Unreachable
from tests.test_examples import example
from tests.tune.searches import matmul, sampled


def space(sch: Schedule) -> None:
    sampled(sch)


def test_a_function_is_tuned_and_built_from_the_database(tmp_path: Path) -> None:
    func = matmul()
    stages: list[str] = []
    database = tune.tune_tir(
        func, "host", 6, 3, space=space, work_dir=tmp_path, task_name="mine", strategy="random",
        callbacks=[lambda state: stages.append(state.stage)],
    )  # fmt: skip
    assert {"default kernels, 1 of 1", "search"} <= set(stages)
    assert {r.task for r in database.records} == {"mine"}
    searched = [r for r in database.records if not r.final]
    assert 5 <= len(searched) <= 7
    again = tune.tune_tir(func, "host", 6, 3, space=space, work_dir=tmp_path, strategy="random")
    assert [r for r in again.records if not r.final] == searched
    sch = tune.compile_tir(tune.Database(tmp_path / "database.jsonl"), func, "host")
    assert sch is not None
    best = database.best(structural_hash(func), str(mlc.Target("host")))
    assert best is not None and structural_hash(sch.func) == best.program
    x, y = (np.random.default_rng(n).random((32, 32), np.float32) for n in range(2))
    with mlc.connect("local://") as board:
        out = board.empty((32, 32))
        board.load(mlc.build(sch, target="host"))["main"](board.tensor(x), board.tensor(y), out)
        np.testing.assert_allclose(out.numpy(), x @ y, rtol=1e-5)
    assert tune.compile_tir(database, func, "aarch64") is None


def test_an_emulators_seconds_are_refused() -> None:
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(matmul(), "aarch64", 4, runner="qemu://cortex-a72", objective="seconds")
    assert str(refusal.value) == (
        "an emulator's seconds are not those of a board\n"
        "  in:  qemu://cortex-a72\n"
        "  try: objective instructions, or a real board"
    )


def test_instructions_are_refused_where_they_are_not_counted() -> None:
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(matmul(), "host", 4, objective="instructions")
    assert str(refusal.value).startswith(
        "executed instructions are not counted on this board\n  in:  local://: "
    )
    assert str(refusal.value).endswith("\n  try: objective seconds, or qemu://")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"scheduler": "gradiant"}, "no scheduler 'gradiant'\n  try: one of gradient, round-robin"),
        (
            {"objective": "joules"},
            "no objective 'joules'\n  try: one of seconds, predicted, instructions",
        ),
        ({"max_trials_global": "8"}, "trials is a whole number above 0\n  in:  trials '8'"),
        ({"minutes": -1}, "minutes is a number, not below 0\n  in:  minutes -1"),
        (
            {"space": "x"},
            "a space is a function that schedules, or has `schedule`\n  in:  space 'x'",
        ),
        (
            {"runner": []},
            "there is no board to measure on\n  try: runner=\"local://\", or several",
        ),
        (
            {"mod": Schedule(matmul())},
            "what is tuned is a function, or a module that has one\n  in:  Schedule\n"
            "  try: sch.func of a Schedule; tune_graph for models",
        ),
        ({"work_dir": __file__}, f"work_dir is a folder, not a file\n  in:  {__file__}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_mistakes_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(**{"mod": matmul(), "target": "host", "strategy": "random", **options})
    assert str(refusal.value) == complaint


def test_a_runner_that_is_no_url_is_refused() -> None:
    with pytest.raises(Unreachable, match="'attic' is not the URL of a board"):
        tune.tune_tir(matmul(), "host", 4, strategy="random", runner=["local://", "attic"])


def test_any_executor_builds(tmp_path: Path) -> None:
    """Programs go to its processes by its own pickle. One function stands for all callbacks."""
    seen: list[int] = []
    with ProcessPoolExecutor(1, get_context("spawn")) as builder:
        database = tune.tune_tir(
            matmul(), "host", 4, 2, space=space, strategy="random", builder=builder,
            work_dir=tmp_path, callbacks=lambda state: seen.append(state.told),
        )  # fmt: skip
    assert {r.measured.verdict for r in database.records} == {"ok"} and max(seen) == 4
    assert tune.compile_tir(tmp_path / "database.jsonl", matmul(), "host") is not None


def test_what_is_no_task_is_refused() -> None:
    sch = Schedule(matmul())
    sch.vectorize(sch.get_loops("c")[1])
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(sch.func, "host", 4)
    assert str(refusal.value) == (
        "the function carries a schedule already\n"
        "  in:  main\n"
        "  try: the function as te.create_prim_func gives it"
    )
    n = te.var("n")
    x = te.placeholder((n, 4), "float32", "x")
    twice = te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] * 2.0, "y")], "twice")
    with pytest.raises(TuneError) as refusal:
        tune.tune_tir(twice, "host", 4)
    assert str(refusal.value) == (
        "kernels are tuned for sizes that are known\n"
        "  in:  twice: x[n, 4], y[n, 4]\n"
        "  try: numbers for its dimensions"
    )


def layer() -> Function:
    builder = BlockBuilder("main")
    x = builder.param("x", (8, 32))
    y = builder.param("y", (32, 48))
    return builder.finish([builder.emit("matmul", x, y)])


def recorded(target: mlc.Target, trace: Any) -> tune.Database:
    """A database that knows one schedule of the layer's kernel."""
    database = tune.Database()
    model = mlc.compile(layer(), target)
    (source,) = model.program.kernels.values()
    from mlc_deploy.graph.lower import unscheduled

    func = unscheduled(source, target).func
    sch = Schedule(func)
    steps = trace(func)
    with suppress(ScheduleError):
        Trace.loads(steps).apply(sch)
    made = Record(
        "matmul", structural_hash(func), str(target), "a board", "seconds", "r",
        structural_hash(sch.func), pack(steps), Measured("ok", (1e-6,)),
    )  # fmt: skip
    database.add([made])
    return database


def test_a_model_is_compiled_with_the_trace_of_the_database() -> None:
    target = mlc.Target("host")

    def reversed_loops(func: Any) -> str:
        sch = Schedule(func)
        name = sch.get_blocks()[0]
        loops = sch.get_loops(name)
        sch.reorder(loops[1], loops[0])
        return sch.trace.dumps()

    plain = mlc.compile(layer(), target)
    database = recorded(target, reversed_loops)
    made = mlc.compile(layer(), target, db=database)
    assert made.kernels_tuned == tuple(made.program.kernels) and not made.notes
    assert not plain.kernels_tuned
    assert made.object_bytes != plain.object_bytes
    assert mlc.compile(layer(), target).object_bytes == plain.object_bytes  # by the cache
    x, y = (
        np.random.default_rng(n).random(s, np.float32) for n, s in enumerate([(8, 32), (32, 48)])
    )
    with mlc.connect("local://") as board:
        (out,) = board.load(made).run({"x": x, "y": y}).values()
    np.testing.assert_allclose(out, x @ y, rtol=1e-5)


def test_a_trace_that_does_not_apply_gives_way_to_the_default() -> None:
    target = mlc.Target("host")
    database = recorded(target, lambda _: '[1,[["get_block",{"name":"gone"},"b",null]]]')
    made = mlc.compile(layer(), target, db=database)
    assert not made.kernels_tuned
    (note,) = made.notes
    (kernel,) = made.program.kernels
    assert note.startswith(
        f"{kernel}: the tuned schedule does not apply, so the default does: get_block: no block"
    )
    assert made.object_bytes == mlc.compile(layer(), target).object_bytes


def test_results_for_something_else_are_told() -> None:
    database = recorded(mlc.Target("aarch64"), lambda func: Schedule(func).trace.dumps())
    made = mlc.compile(layer(), "host", db=database)
    assert not made.kernels_tuned
    host, other = mlc.Target("host"), mlc.Target("aarch64")
    assert made.notes == (
        f"the database has no results for the target, {host}, only for: {other}; "
        "try: --target with what it was tuned for",
    )
    builder = BlockBuilder("main")
    another = builder.finish([builder.emit("relu", builder.param("x", (8, 32)))])
    (note,) = mlc.compile(another, "aarch64", db=database).notes
    assert note == (
        "the database has results for this target, but for none of this model's kernels"
    )


def test_a_users_own_search_in_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    example("random_search").main()  # checks its result itself
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:5]] == list("01234")
    assert "def apply_trace(sch: Schedule) -> None:" in lines
