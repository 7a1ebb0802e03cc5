"""`mlc-deploy tune` as users run it: tables, record, going on after Ctrl-C, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlc_deploy.tune.database import Database
from tests.cli.command import MODELS, Command

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
    assert "end to end" in done.stderr and "mlc-deploy MODEL --db t.jsonl" in done.stderr

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
        sys.executable, "-m", "mlc_deploy.cli", "tune", str(DIGITS), *TASKS, "--search", "random",
        "--db", str(db), "--json", str(record), "--trials", "3000", "--batch", "4",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        end = time.monotonic() + 60
        while not db.exists() or len(db.read_text().splitlines()) < 16:
            assert p.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        said, _ = p.communicate(timeout=30)
        assert p.returncode == 130
    assert "stopped, and the same command goes on" in said
    assert json.loads(record.read_text())["stopped"]
    database = Database(db)
    assert len(database) >= 13 and not database.notes


def test_misuse_is_told(mlc_deploy: Command, folder: Path) -> None:
    said = mlc_deploy("tune", DIGITS, "--db", "t.jsonl", "--trials", "0").complaint
    assert said == "error: --trials is a number above 0\n  in:  --trials 0\n-> 2"
    said = mlc_deploy("tune", DIGITS, "--db", "t.jsonl", "--board", "none").complaint
    assert said == (
        "error: kernels are tuned on a board\n  in:  --board none\n  try: a board's URL\n-> 2"
    )
    said = mlc_deploy("tune", DIGITS, "--db", "t.jsonl", "--only", "lstm").complaint
    assert said == (
        "error: the model has no kernel to be tuned\n"
        f"  in:  {DIGITS} --only lstm\n"
        f"  try: mlc-deploy inspect {DIGITS}, which lists its kernels\n"
        "-> 2"
    )
    Path("model.jsonl").write_bytes(b"\x08\x07")
    said = mlc_deploy("tune", DIGITS, "--db", "model.jsonl").complaint
    assert said == (
        "error: the file is no tuning database\n"
        "  in:  model.jsonl\n"
        "  try: a file of its own for --db; it is made where there is none\n"
        "-> 1"
    )


def test_a_database_that_is_not_there_is_told(mlc_deploy: Command, folder: Path) -> None:
    said = mlc_deploy("--board", "none", "--db", "t.jsonl").complaint
    assert said == (
        "error: there is no such tuning database\n"
        "  in:  t.jsonl\n"
        "  try: mlc-deploy tune MODEL --db t.jsonl, which makes it\n"
        "-> 1"
    )
