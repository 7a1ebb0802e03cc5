"""`mlc-deploy transcribe`: what it says of mistakes, before anything is compiled."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path

from tests.cli.command import Command
from tests.decode.test_speech_files import CONFIG, GENERATION, MOONSHINE


def test_refusals(mlc_deploy: Command, folder: Path, golden: Callable[..., None]) -> None:
    for name, rate in (("fast.wav", 44100), ("said.wav", 16000)):
        with wave.open(name, "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(b"\0\1" * 800)
    Path("whisper").mkdir()
    Path("whisper/config.json").write_text(json.dumps(CONFIG))
    Path("whisper/generation_config.json").write_text(json.dumps(GENERATION))
    for name, config in (("moonshine", MOONSHINE), ("bert", {"model_type": "bert"})):
        Path(name).mkdir()
        Path(f"{name}/config.json").write_text(json.dumps(config))
    said = []
    for words in (
        ("nowhere", "--audio", "said.wav"),
        (".", "--audio", "said.wav"),
        ("whisper", "--audio", "fast.wav"),
        ("whisper", "--audio", "none.wav"),
        ("whisper", "--audio", "said.wav", "--language", "xx"),
        ("whisper", "--audio", "said.wav", "--tokens", "0"),
        ("whisper", "--audio", "said.wav", "--seconds", "10"),
        ("moonshine", "--audio", "said.wav", "--seconds", "0.01"),
        ("bert", "--audio", "said.wav"),
        ("whisper", "--audio", "said.wav", "--board", "none", "--target", "aarch64"),
        ("whisper", "--audio", "said.wav", "--board", "local://"),
    ):
        ended = mlc_deploy("transcribe", *words)
        assert ended.stdout == ""
        text = ended.complaint.replace(str(folder), "TMP")
        said.append(f"$ mlc-deploy transcribe {' '.join(words)}\n{text}\n")
    golden("\n".join(said), "cli_transcribe_refusals")
