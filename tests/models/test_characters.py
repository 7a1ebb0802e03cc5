"""A model of characters that is trained here writes the same text on boards as in torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import mlc_deploy as mlc
from tests.cli.command import Command
from tests.cli.conftest import mlc_deploy
from tests.sessions import TARGETS, aarch64, armv7, board_named

__all__ = ["aarch64", "armv7", "mlc_deploy"]  # fixtures

pytestmark = [
    pytest.mark.decoders,
    pytest.mark.filterwarnings("ignore"),  # of the exporter
]

SCRIPT = Path(__file__).parents[2] / "scripts" / "examples" / "train_characters.py"
STEPS, COUNT = 120, 40


def script() -> Any:
    spec = importlib.util.spec_from_file_location("train_characters", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_of_torch(
    tmp_path: Path, request: pytest.FixtureRequest, mlc_deploy: Command
) -> None:
    pytest.importorskip("torch")
    train = script()
    model, letters = train.trained(train.docstrings(40_000), STEPS)
    file = train.export(model, letters, tmp_path)
    prompts = ("Return the ", "import")
    right = [train.written(model, letters, prompt, COUNT) for prompt in prompts]
    assert right[0] != right[1] and len(set(right[0])) > 3
    for name in ("aarch64", "armv7"):
        board = board_named(request, name)
        decoder = mlc.load_decoder(file, TARGETS[name])
        for prompt, text in zip(prompts, right, strict=True):
            reply = mlc.generate(decoder, prompt, board, tokens=COUNT)
            assert "".join(reply) == text == reply.text
    ended = mlc_deploy(
        "generate", tmp_path, "--prompt", prompts[0], "--tokens", f"{COUNT}", "--board", "local://"
    )
    assert ended.stdout == f"{right[0]}\n", ended.stderr
