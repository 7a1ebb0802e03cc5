"""`mlc-deploy tune` as users run it: tables, record, going on after Ctrl-C, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mlc_deploy.cli.tune_report import recorded
from mlc_deploy.driver.deployment import Layer
from mlc_deploy.tune.measuring import Measuring
from mlc_deploy.tune.tune import State
from mlc_deploy.tuned import Database, Measured, PlanRecord, Record, pack
from mlc_rpc import Lost, Unreachable
from mlc_targets import Target
from tests.cli.command import MODELS, Command
from tests.cli.command_process import AS_AT_A_TERMINAL, COMMAND
from tests.tune.searches import matmul_task

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)
DIGITS = MODELS / "digits_cnn.onnx"
TASKS = ("--target", "aarch64", "--board", "qemu://cortex-a72", "--only", "max_pool")


@needs_qemu
def test_kernels_are_tuned_and_the_model_is_compiled_with_them(
    mlc_deploy: Command, folder: Path
) -> None:
    common = (*TASKS, "--search", "random", "--db", "t.jsonl", "--json", "-", "--batch", "4")
    done = mlc_deploy("tune", DIGITS, *common, "--trials", "8")
    assert done.status == 0, done.stderr
    record = done.record
    assert record["objective"] == "instructions" and record["trials"] == 8
    assert [task["name"] for task in record["tasks"]] == ["max_pool", "max_pool_1"]
    assert all(task["after"] <= task["before"] for task in record["tasks"])
    assert record["measured"] >= 8 and not record["stopped"] and record["ok"]
    layers = {layer["name"]: layer for layer in record["layers"]}
    assert len(layers) == 7
    for task, layer in zip(record["tasks"], ("maxpool_3", "maxpool_6"), strict=True):
        assert (layers[layer]["before"], layers[layer]["after"]) == (task["before"], task["after"])
    assert record["before"] == sum(layer["before"] for layer in layers.values())
    assert record["after"] == sum(layer["after"] for layer in layers.values())
    assert (
        "end to end" in done.stderr
        and f"mlc-deploy {DIGITS} --target aarch64 --db t.jsonl compiles with it" in done.stderr
    )

    again = mlc_deploy("tune", DIGITS, *common, "--trials", "8").record
    assert again["measured"] == 0 and again["tasks"] == record["tasks"]
    more = mlc_deploy("tune", DIGITS, *common, "--trials", "10").record
    assert 0 < more["measured"] <= 2 and more["trials"] == 10

    run = mlc_deploy(
        "--target",
        "aarch64",
        "--board",
        "qemu://cortex-a72",
        "--db",
        "t.jsonl",
        "--json",
        "-",
        "-v",
    )
    assert run.status == 0
    assert run.record["instructions"] == more["after"]
    assert "  2 of 7 kernels are tuned\n" in run.stderr


@needs_qemu
def test_after_ctrl_c_the_same_command_goes_on(tmp_path: Path) -> None:
    db, record = tmp_path / "t.jsonl", tmp_path / "r.json"
    command = [
        *AS_AT_A_TERMINAL, sys.executable, *COMMAND, "tune", str(DIGITS), *TASKS,
        "--search", "random", "--db", str(db), "--json", str(record), "--trials", "3000",
        "--batch", "4",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        end = time.monotonic() + 300
        while not db.exists() or len(db.read_text().splitlines()) < 16:
            assert p.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        said, _ = p.communicate(timeout=120)
        assert p.returncode == 130
    assert "stopped, the same command continues" in said
    assert json.loads(record.read_text())["stopped"]
    database = Database(db)
    assert len(database) >= 13 and not database.notes


@needs_qemu
def test_without_a_model_the_shipped_one_is_tuned(mlc_deploy: Command, folder: Path) -> None:
    done = mlc_deploy("tune", *TASKS, "--search", "random", "--db", "t.jsonl", "--trials", "2")
    assert done.status == 0 and done.stdout.startswith("digits_cnn for aarch64, tuned on qemu://")
    assert "mlc-deploy --target aarch64 --db t.jsonl compiles with it" in done.stdout


LOCAL = ("--target", "host", "--board", "local://", "--only", "max_pool", "--search", "random")
LOST = Lost("the board does not answer any more")
GONE = Unreachable("no board can be reached")


@pytest.mark.parametrize(
    ("error", "ending"),
    [(KeyboardInterrupt(), "-> 130"), (LOST, f"error: {LOST}\n-> 3")],
    ids=["Ctrl-C", "lost board"],
)
def test_what_was_found_is_kept_when_the_whole_model_is_not_run_to_its_end(
    error: BaseException,
    ending: str,
    mlc_deploy: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlc_deploy.cli.bench.deploy", Mock(side_effect=error))
    done = mlc_deploy(
        "tune", DIGITS, *LOCAL, "--db", "t.jsonl", "--json", "r.json", "--trials", "4"
    )
    record = json.loads(Path("r.json").read_text())
    assert record["stopped"] and record["trials"] == 4
    assert all(task["after"] for task in record["tasks"])
    assert record["layers"] is record["before"] is record["after"] is record["ok"] is None
    assert "max_pool_1" in done.stdout and "end to end" not in done.stdout
    assert "stopped, the same command continues" in done.stdout
    assert done.complaint.endswith(ending)


def test_boards_that_are_away_are_left_out(mlc_deploy: Command, folder: Path) -> None:
    away = "tcp://127.0.0.1:1"
    boards = ("--board", away, "--board", "local://")
    done = mlc_deploy(
        "tune", DIGITS, *boards, "--only", "max_pool", "--search", "random", "--trials", "2",
        "--db", "t.jsonl",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert f"incident  {away}: " in done.stdout and "end to end" in done.stdout


def test_ctrl_c_before_the_first_result_says_that_there_is_none(
    mlc_deploy: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlc_deploy.tune.api.plans", Mock(side_effect=KeyboardInterrupt))
    done = mlc_deploy("tune", DIGITS, *LOCAL[:4], "--search", "random", "--db", "t.jsonl")
    assert "warning: nothing was measured yet; the same command continues\n" in done.stderr
    assert "holds all results" not in done.stderr
    assert done.complaint.endswith("-> 130")


def test_ctrl_c_while_layouts_are_chosen_says_how_to_go_on(
    mlc_deploy: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlc_deploy("tune", DIGITS, *LOCAL, "--db", "t.jsonl", "--trials", "2")
    monkeypatch.setattr("mlc_deploy.tune.api.plans", Mock(side_effect=KeyboardInterrupt))
    done = mlc_deploy("tune", DIGITS, *LOCAL[:4], "--search", "random", "--db", "t.jsonl")
    assert "t.jsonl holds all results; the same command continues\n" in done.stderr
    assert done.complaint.endswith("-> 130")


def test_what_was_found_is_kept_when_all_boards_are_lost(
    mlc_deploy: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(by: Measuring, *args: Any, **keywords: Any) -> list[Measured]:
        if by.measured >= 6:
            raise GONE
        return finished(by, *args, **keywords)

    finished = Measuring.finish
    monkeypatch.setattr(Measuring, "finish", finish)
    done = mlc_deploy(
        "tune", DIGITS, *LOCAL, "--db", "t.jsonl", "--json", "r.json", "--trials", "32",
        "--batch", "4",
    )  # fmt: skip
    record = json.loads(Path("r.json").read_text())
    assert record["stopped"] and 4 <= record["trials"] < 32
    assert record["measured"] >= 6 and record["layers"] is None
    assert "max_pool_1" in done.stdout
    assert done.complaint.endswith(f"error: {GONE}\n-> 3")


def test_calls_that_share_a_name_are_paired_in_their_order() -> None:
    def deployment(*calls: tuple[str, str, float]) -> Any:
        layers = [Layer(name, kernel, (1,), "float32", us) for name, kernel, us in calls]
        return SimpleNamespace(layers=layers, ok=True, timing=SimpleNamespace(median=1e-3))

    before = deployment(("conv", "conv2d", 10.0), ("conv", "conv2d_1", 20.0), ("", "relu", 1.0))
    after = deployment(
        ("conv", "layout_transform", 2.0), ("conv", "conv2d", 4.0), ("conv", "conv2d_1", 8.0),
        ("", "relu", 1.0),
    )  # fmt: skip
    state = State([], "seconds", 0)
    layers = recorded(state, None, (before, after), (), "m", Target("host"), ())["layers"]
    assert [(x["name"], x["kernel"], x["before"], x["after"]) for x in layers] == [
        ("conv", "layout_transform", None, 2e-6),
        ("conv", "conv2d", 1e-5, 4e-6),
        ("conv", "conv2d_1", 2e-5, 8e-6),
        ("", "relu", 1e-6, 1e-6),
    ]


def test_a_model_that_got_slower_is_named() -> None:
    def deployment(seconds: float, verdict: str) -> Any:
        timing = SimpleNamespace(median=seconds, verdict=verdict)
        return SimpleNamespace(layers=[], ok=True, timing=timing)

    def doubts(*done: Any) -> Any:
        return recorded(State([], "seconds", 0), None, done, (), "m", Target("host"), ())["doubts"]

    assert doubts(deployment(1e-3, "ok"), deployment(1.01e-3, "ok")) == []
    assert doubts(deployment(1e-3, "ok"), deployment(1.2e-3, "noisy")) == [
        "the tuned model is slower than the untuned one (timings: ok untuned, noisy tuned); "
        "try: more trials, when nothing else runs on the board"
    ]


MISTAKES: dict[str, tuple[str, ...]] = {
    "no trials": ("--trials", "0"),
    "no time": ("--minutes", "-1"),
    "no time for a schedule": ("--timeout", "0"),
    "no board": ("--board", "none"),
    "a board that is none": ("--board", "qemu://cortex-a72", "--board", "none"),
    "an unknown board": ("--board", "attik"),
    "unknown cores": ("--cores", "quick"),
    "an unknown precision": ("--precision", "float17"),
    "several levels": ("--target", "aarch64:base,dotprod"),
    "another machine's board": ("--target", "armv7a", "--board", "local://"),
    "kernels that there are not": ("--only", "lstm"),
    "a database in no folder": ("--db", "nofolder/t.jsonl"),
    "a database that is a folder": ("--db", "afolder"),
    "a database that is none": ("--db", "model.jsonl"),
    "another database that is not there": ("--from", "other.jsonl"),
    "another database that is none": ("--from", "model.jsonl"),
    "a record in no folder": ("--json", "nofolder/r.json"),
    "a record over the database": ("--json", "./t.jsonl"),
    "a record over the model": ("--json", "digits.onnx"),
}


def test_misuse_is_told(mlc_deploy: Command, folder: Path, golden: Callable[..., None]) -> None:
    Path("model.jsonl").write_bytes(b"\x08\x07")
    Path("afolder").mkdir()
    shutil.copy(DIGITS, "digits.onnx")
    text = []
    for name, mistake in MISTAKES.items():
        said = mlc_deploy("tune", "digits.onnx", "--db", "t.jsonl", *mistake).complaint
        text.append(f"# {name}\n{said}")
    golden("\n\n".join(text), "tune_mistakes")


def test_a_compiled_model_is_refused(mlc_deploy: Command, folder: Path) -> None:
    assert mlc_deploy("--board", "none", "--save", "digits.mlc").status == 0
    said = mlc_deploy("tune", "digits.mlc", "--db", "t.jsonl").complaint
    assert said == (
        "error: the model is compiled already\n"
        "  in:  digits.mlc\n"
        "  try: the model that it was compiled from\n"
        "-> 2"
    )


def test_what_others_found_is_taken_over(mlc_deploy: Command, folder: Path) -> None:
    task = matmul_task()
    theirs = Database("theirs.jsonl")
    theirs.add_workload(task.func)
    measured = Measured("ok", (1e-3,))
    theirs.add(
        [
            Record(
                "matmul",
                task.workload,
                "t",
                "a board",
                "seconds",
                "r",
                "p",
                pack("[1,[]]"),
                measured,
            )
        ]
    )
    theirs.add_plans([PlanRecord("m", "net", "t", "a board", "seconds", {"conv": "NCHW"}, 1.0)])
    ended = mlc_deploy(
        "tune", DIGITS, "--db", "t.jsonl", "--from", "theirs.jsonl", "--only", "lstm"
    )
    assert ended.status == 2 and "theirs.jsonl: 1 results copied\n" in ended.stderr
    mine = Database("t.jsonl")
    assert mine.records == theirs.records and mine.plans == theirs.plans
    again = mlc_deploy(
        "tune", DIGITS, "--db", "t.jsonl", "--from", "theirs.jsonl", "--only", "lstm"
    )
    assert "theirs.jsonl: 0 results copied\n" in again.stderr


def test_a_database_that_is_not_there_is_told(mlc_deploy: Command, folder: Path) -> None:
    said = mlc_deploy("--board", "none", "--db", "t.jsonl").complaint
    assert said == (
        "error: there is no such tuning database\n"
        "  in:  t.jsonl\n"
        "  try: mlc-deploy tune MODEL --db t.jsonl, which makes it\n"
        "-> 1"
    )
    (folder / "t.jsonl").mkdir()
    said = mlc_deploy("--board", "none", "--db", "t.jsonl").complaint
    assert said == "error: a tuning database is a file\n  in:  t.jsonl\n-> 1"


@pytest.mark.parametrize("text", ["", '{"check":"12', '{"c'])
def test_a_database_without_results_is_told(mlc_deploy: Command, folder: Path, text: str) -> None:
    (folder / "t.jsonl").write_text(text)
    done = mlc_deploy("--board", "none", "--db", "t.jsonl")
    assert "t.jsonl has no results; try: mlc-deploy tune, with it\n" in done.stderr


def test_a_farm_predicts_no_times(mlc_deploy: Command) -> None:
    options = ("--farm", "tls://scheduler", "--objective", "predicted", "--db", "t.jsonl")
    assert mlc_deploy("tune", DIGITS, *options).complaint == (
        "error: boards of a farm simulate no caches, so they predict no times\n"
        "  in:  --objective predicted\n"
        "  try: --board qemu://, without --farm\n-> 2"
    )


@needs_qemu
def test_predicted_time_is_tuned_without_a_board(mlc_deploy: Command, folder: Path) -> None:
    done = mlc_deploy(
        "tune", DIGITS, "--target", "raspberry-pi/4b", "--objective", "predicted", "--only",
        "max_pool", "--search", "random", "--db", "t.jsonl", "--trials", "2", "--json", "-",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    record = done.record
    assert record["objective"] == "predicted" and record["boards"] == ["qemu://cortex-a72"]
    assert record["before"] == pytest.approx(sum(layer["before"] for layer in record["layers"]))
    assert 0 < record["after"] < 1e-2  # seconds
    assert " objective predicted seconds, not measured, on emulated aarch64, " in done.stderr
    assert "default predicted µs" in done.stderr
    foreseen = mlc_deploy("--target", "raspberry-pi/4b", "--db", "t.jsonl", "--json", "-").record
    assert foreseen["predicted"]["ms"] == pytest.approx(record["after"] * 1e3, rel=0.01)
