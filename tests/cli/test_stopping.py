"""--stop-after: what a layer computed in a turn, as the command shows and writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import Command
from tests.driver.test_streams import voice_activity

HERE = ("vad.onnx", "--const", "sr=16000", "--board", "local://")
LAYER = "rates.dense_add_add"  # of the gates, in the loop


@pytest.fixture(autouse=True)
def file(folder: Path) -> None:
    onnx.save(voice_activity(), folder / "vad.onnx")


def test_turns_of_a_layer(mlc_deploy: Command, folder: Path) -> None:
    words = ("--stop-after", f"{LAYER}@1-2", "--stop-after", "rates.dense_sigmoid")
    done = mlc_deploy(*HERE, *words, "--output", "there", "--json", "record.json")
    assert done.status == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:4] for line in lines] == [
        ["layer", "iteration", "result", "shape"], [LAYER, "1", "add", "1x128"],
        [LAYER, "2", "add", "1x128"], ["rates.dense_sigmoid", "0", "sigmoid", "1x1"],
    ]  # fmt: skip
    record = json.loads((folder / "record.json").read_text())
    files = [f"{LAYER}.1.add.npy", f"{LAYER}.2.add.npy", "rates.dense_sigmoid.0.sigmoid.npy"]
    assert [stop["file"] for stop in record["stops"]] == files and record["latency"] is None
    assert sorted(path.name for path in (folder / "there").iterdir()) == sorted(files)
    for stop in record["stops"]:
        array = np.load(folder / "there" / stop["file"])
        assert (list(array.shape), array.dtype.name) == (stop["shape"], stop["dtype"])
        assert stop["least"] == array.min() and stop["most"] == array.max()
        assert stop["not_finite"] == 0


def test_what_comes_before_a_turn_that_does_not(mlc_deploy: Command) -> None:
    done = mlc_deploy(*HERE, "--stop-after", f"{LAYER}@8-9")
    assert done.status == 1 and re.search(rf"{LAYER} +8 ", done.stdout)
    assert done.stderr.endswith(
        f"error: layer '{LAYER}' ran 9 times, so its iteration 9 never came\n"
        "  on:  local://\n  try: iterations 0 to 8\n"
    )


def test_a_layer_that_there_is_not(mlc_deploy: Command) -> None:
    done = mlc_deploy(*HERE, "--stop-after", "rates.dense@1")
    assert done.status == 2 and done.stdout == ""
    assert "error: the model has no layer 'rates.dense'\n  try: rates.dense_add" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trace", "t.json"),
         "error: --trace has no effect where the run ends before the outputs are there\n"
         "  in:  --stop-after head\n  try: without --trace, or without --stop-after\n"),
        (("--board", "none"),
         "error: --stop-after has no effect where the model is not run\n"
         "  in:  --board none\n  try: without --stop-after, or with a board\n"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(mlc_deploy: Command, words: tuple[str, ...], told: str) -> None:
    done = mlc_deploy(*HERE, "--stop-after", "head", *words)
    assert (done.status, done.stdout) == (2, "") and done.stderr.endswith(told)
