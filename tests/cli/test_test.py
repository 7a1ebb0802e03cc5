"""`mlc-deploy test`: models on boards, a baseline, and what a CI reads."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import MODELS, Command

ARM = "qemu://cortex-a72"


@pytest.fixture
def models(folder: Path) -> Path:
    """A folder with a model and its images, and a file that is none."""
    release = folder / "release"
    release.mkdir()
    shutil.copy(MODELS / "digits_cnn.onnx", release / "digits.onnx")
    with np.load(MODELS / "digits.npz") as images:
        np.savez(release / "digits.npz", image=images["image"], label=images["label"])
    (release / "broken.onnx").write_bytes(b"nothing")
    return release


def rows(stdout: str) -> list[list[str]]:
    """The table's cells."""
    table = stdout.split("\n\n")[0].splitlines()
    return [[c.strip() for c in line.split("  ") if c.strip()] for line in table[1:]]


def test_one_that_fails_ends_no_other(mlc_deploy: Command, models: Path) -> None:
    page, junit = "page.html", "junit.xml"
    done = mlc_deploy(
        "test", "release", "--board", "local://", "--board", ARM, "--html", page, "--junit", junit
    )
    assert done.status == 1
    found = rows(done.stdout)
    assert [row[:3] for row in found] == [
        ["broken", "local://", "FAILED"],
        ["broken", ARM, "FAILED"],
        ["digits", "local://", "ok"],
        ["digits", ARM, "ok"],
    ]
    assert found[3][3].endswith(" instructions") and found[2][3].endswith(" ms")
    told = done.stdout.split("\n\n")[1].splitlines()
    assert told[0].strip() == "broken on local://"
    assert told[1].strip() == "this is not an ONNX model"
    assert told[-1] == " verdict   4 runs: 2 ok, 2 failed"
    suites = xml.parse(junit).getroot()
    assert suites.attrib["tests"] == "4" and suites.attrib["failures"] == "2"
    cases = {(c.get("classname"), c.get("name")): c for c in suites.iter("testcase")}
    assert len(cases) == 4
    failure = cases[ARM, "broken"].find("failure")
    assert failure is not None and failure.get("message") == "this is not an ONNX model"
    assert "release/broken.onnx" in (failure.text or "")
    assert cases[ARM, "digits"].find("failure") is None
    assert "instructions" in (cases[ARM, "digits"].findtext("system-out") or "")
    text = Path(page).read_text()
    HTMLParser().feed(text)
    assert "4 runs: 2 ok, 2 failed" in text and "this is not an ONNX model" in text
    assert "http" not in text and "<script" not in text


def test_a_baseline(mlc_deploy: Command, models: Path) -> None:
    (models / "broken.onnx").unlink()
    ran = ("test", "release/digits.onnx", "--board", ARM)
    assert mlc_deploy(*ran, "--output", "base").status == 0
    (file,) = Path("base").iterdir()
    assert file.name == "digits@qemu___cortex-a72.json"
    same = mlc_deploy(*ran, "--baseline", "base")
    assert same.status == 0 and rows(same.stdout)[0][4] == "no change"
    record = json.loads(file.read_text())
    record["instructions"] = record["instructions"] * 98 // 100
    file.write_text(json.dumps(record))
    rose = mlc_deploy(*ran, "--baseline", "base")
    assert rose.status == 1
    assert "2.04 % more instructions, above the limit of 1 %" in rose.stdout
    assert mlc_deploy(*ran, "--baseline", "base", "--rise", "3").status == 0
    file.write_text("{}")
    damaged = mlc_deploy(*ran, "--baseline", "base")
    assert damaged.status == 1 and "this is not a results file of mlc-deploy" in damaged.stdout
    file.unlink()
    unknown = mlc_deploy(*ran, "--baseline", "base")
    assert unknown.status == 0 and rows(unknown.stdout)[0][4] == "not in the baseline"


def test_what_stands_beside_a_model(mlc_deploy: Command, models: Path) -> None:
    """Right outputs that are wrong are a failure; an array that is no input is one, too."""
    (models / "broken.onnx").unlink()
    first = mlc_deploy("test", "release", "--board", "local://", "--output", "base")
    assert first.status == 0
    (file,) = Path("base").iterdir()
    record = json.loads(file.read_text())
    assert record["inputs"][0]["source"] == "given" and record["predictions"]["accuracy"] > 0.9
    (output,) = record["outputs"]
    wrong: dict[str, Any] = {output["name"]: np.zeros(output["shape"], np.float32)}
    np.savez(models / "digits.expect.npz", **wrong)
    done = mlc_deploy("test", "release", "--board", "local://")
    assert done.status == 1 and f"output '{output['name']}' is wrong in" in done.stdout
    np.savez(models / "digits.npz", pictures=np.zeros(3))
    done = mlc_deploy("test", "release", "--board", "local://")
    assert done.status == 1 and "'pictures'" in done.stdout


def test_boards_that_are_away(mlc_deploy: Command, models: Path) -> None:
    away = "tcp://127.0.0.1:1"
    done = mlc_deploy("test", "release/digits.onnx", "--board", away)
    assert done.status == 3
    both = mlc_deploy("test", "release/digits.onnx", "--board", away, "--board", "local://")
    assert both.status == 1
    assert [row[2] for row in rows(both.stdout)] == ["FAILED", "ok"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (
            ["--kinds", "cortex-a72"],
            "error: --kinds is of a farm\n  in:  --kinds cortex-a72\n  try: with --farm",
        ),
        (
            ["--farm", "tcp://s", "--board", "local://"],
            "error: --board has no effect with a farm\n  in:  --farm tcp://s\n  try: --kinds K",
        ),
        (
            ["--board", "local://", "--board", "local://"],
            "error: this board is given twice\n  in:  --board local://\n  try: give it once",
        ),
        (
            ["--board", "none"],
            "error: a test runs models\n  in:  --board none\n  try: --board local://",
        ),
        (
            ["--baseline", "missing"],
            "error: there is no such folder\n  in:  --baseline missing\n"
            "  try: a folder that --output wrote",
        ),
        (
            ["--baseline", "release", "--output", "release"],
            "error: the records would overwrite the baseline\n  in:  --output release\n"
            "  try: another folder",
        ),
        (["--rise", "-1"], "error: --rise must be 0 or more\n  in:  --rise -1\n  try: --rise 1"),
    ],
)
def test_refusals(args: list[str], complaint: str, mlc_deploy: Command, models: Path) -> None:
    assert mlc_deploy("test", "release", *args).complaint == f"{complaint}\n-> 2"


def test_an_empty_folder(mlc_deploy: Command, folder: Path) -> None:
    Path("empty").mkdir()
    assert mlc_deploy("test", "empty").complaint == (
        "error: the folder holds no model\n  in:  empty\n"
        "  try: files of .mlc, .onnx, .pt2, .tflite\n-> 2"
    )
