"""Inputs that stay on the board, as the command says and takes them."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.cli.command import Command
from tests.driver.test_streams import voice_activity


def test_the_command_says_what_stays(mlc_deploy: Command, folder: Path) -> None:
    file = folder / "vad.onnx"
    onnx.save(voice_activity(), file)
    done = mlc_deploy(str(file), "--board", "local://")
    assert done.status == 0
    assert "state     state stays on the board; stateN is its next value" in done.stdout
    none = mlc_deploy(str(file), "--board", "local://", "--state", "none")
    assert none.status == 0 and "stays on the board" not in none.stdout
    wrong = mlc_deploy(str(file), "--board", "local://", "--state", "input=stateN")
    assert wrong.status == 2 and wrong.stderr.endswith(
        "error: input 'input' is float32[1, 320], and output 'stateN' is float32[2, 1, 32]: they "
        "do not form a state\n  in:  --state input=stateN\n"
        "  try: a pair of one shape and one dtype\n"
    )
