"""`mlc-deploy compare`: what rose, what fell, and when that is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command


def record(**changed: Any) -> dict[str, Any]:
    layers = [
        {"name": "conv", "median_us": 900.0, "instructions": 4000},
        {"name": "conv", "median_us": 50.0, "instructions": 500},
        {"name": "softmax", "median_us": 50.5, "instructions": 500},
    ]
    latency = {"verdict": "ok", "median_ms": 1.0}
    return {
        "model": "net", "target": "aarch64", "precision": "float32", "threads": 1,
        "board": {"url": "ssh://pi@attic"}, "layers": layers, "instructions": 5000,
        "latency": latency,
    } | changed  # fmt: skip


def counted(conv: int) -> dict[str, Any]:
    layers = [
        {"name": "conv", "median_us": 1.0, "instructions": conv},
        {"name": "gelu", "median_us": 1.0, "instructions": 1000},
    ]
    return record(layers=layers, instructions=conv + 1000)


@pytest.fixture
def before(folder: Path) -> Path:
    (folder / "before.json").write_text(json.dumps(record()))
    return folder


def test_instructions_layer_by_layer(mlc_deploy: Command, before: Path) -> None:
    (before / "after.json").write_text(json.dumps(counted(4050)))
    done = mlc_deploy("compare", "before.json", "after.json")
    assert (done.status, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        " layer        instructions before  after  change",
        " conv                       4,000  4,050  +1.25%",
        " gelu                           -  1,000",
        " conv                         500      -",
        " softmax                      500      -",
        " whole model                5,000  5,050  +1.00%",
        "",
        " verdict   1.00 % more instructions, within the limit of 1 %",
    ]


@pytest.mark.parametrize(("rise", "status"), [("1", 1), ("2", 0), ("0", 1)])
def test_a_rise_is_a_failure(mlc_deploy: Command, before: Path, rise: str, status: int) -> None:
    (before / "after.json").write_text(json.dumps(counted(4051)))
    done = mlc_deploy("compare", "before.json", "after.json", "--rise", rise)
    assert done.status == status
    said = "above" if status else "within"
    verdict = f" verdict   1.02 % more instructions, {said} the limit of {rise} %"
    assert done.stdout.splitlines()[-1] == verdict
    fell = mlc_deploy("compare", "after.json", "before.json")
    assert fell.status == 0
    assert fell.stdout.splitlines()[-1] == " verdict   1.01 % fewer instructions"


def test_times_where_nothing_was_counted(mlc_deploy: Command, before: Path) -> None:
    slow = {"verdict": "noisy", "median_ms": 1.2}
    after = record(instructions=None, latency=slow, threads=4, board={"url": "ssh://pi@cellar"})
    (before / "after.json").write_text(json.dumps(after))
    done = mlc_deploy("compare", "before.json", "after.json", "--rise", "10")
    assert done.status == 1
    assert [line.rstrip() for line in done.stdout.splitlines()[-6:]] == [
        " whole model      1,000  1,200  +20.00%",
        "",
        " note      threads was 1, and is 4",
        " note      board was ssh://pi@attic, and is ssh://pi@cellar",
        " note      the times after are noisy",
        " verdict   20.00 % more time, above the limit of 10 %",
    ]


def test_a_record_of_the_command(mlc_deploy: Command, folder: Path) -> None:
    mlc_deploy("--board", "local://", "--json", "record.json")
    done = mlc_deploy("compare", "record.json", "record.json")
    assert done.status == 0 and done.stdout.endswith(" verdict   no change\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "{",
            "error: this is not a results file of mlc-deploy\n  in:  other.json\n"
            "  try: mlc-deploy MODEL --board B --json FILE\n-> 2",
        ),
        (
            json.dumps(record(layers=[{"name": 3}])),
            "error: this is not a results file of mlc-deploy\n  in:  other.json\n"
            "  try: mlc-deploy MODEL --board B --json FILE\n-> 2",
        ),
        (
            json.dumps(record(instructions=None, latency=None)),
            "error: the results cannot be compared: one has instructions, the other times\n"
            "  in:  before.json, other.json\n  try: the same --board for both\n-> 2",
        ),
        (
            None,
            "error: there is no such file\n  in:  other.json\n"
            "  try: a file that --json wrote\n-> 2",
        ),
    ],
)
def test_refusals(mlc_deploy: Command, before: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (before / "other.json").write_text(text)
    assert mlc_deploy("compare", "before.json", "other.json").complaint == complaint


def test_no_percentage(mlc_deploy: Command, before: Path) -> None:
    done = mlc_deploy("compare", "before.json", "before.json", "--rise", "nan")
    assert done.complaint == (
        "error: --rise must be 0 or more\n  in:  --rise nan\n  try: --rise 1\n-> 2"
    )


def foreseen(ms: float) -> str:
    layers = [
        {"name": "conv", "median_us": 1.0, "instructions": 1000, "predicted_ms": ms - 1},
        {"name": "gelu", "median_us": 1.0, "instructions": 1000, "predicted_ms": 1.0},
    ]
    return json.dumps(record(layers=layers, instructions=2000) | {"predicted": {"ms": ms}})


def test_predicted_time_is_a_gate(mlc_deploy: Command, tmp_path: Path) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text(foreseen(10.0))
    after.write_text(foreseen(10.5))
    ended = mlc_deploy("compare", str(before), str(after))
    assert ended.status == 0 and ended.stdout.splitlines()[-1] == " verdict   no change"
    ended = mlc_deploy("compare", str(before), str(after), "--by", "predicted")
    assert ended.status == 1
    assert ended.stdout.splitlines()[0] == " layer        predicted ms before  after  change"
    verdict = " verdict   5.00 % more predicted time, above the limit of 1 %"
    assert ended.stdout.splitlines()[-1] == verdict


def test_a_measure_that_a_record_lacks(mlc_deploy: Command, before: Path) -> None:
    ended = mlc_deploy("compare", "before.json", "before.json", "--by", "predicted")
    assert ended.status == 2
    assert ended.stderr == (
        "error: a file has no predicted time\n"
        "  in:  before.json, before.json\n"
        "  try: without --by, or results from the same --board\n"
    )
