"""What the files of a speech model say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_deploy.decode.speech_files import Speech, speech_of
from mlc_deploy.decode.speech_model import read_speech
from mlc_deploy.errors import DecodeError

CONFIG = {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448,
          "decoder_start_token_id": 50258, "eos_token_id": 50257}  # fmt: skip
GENERATION = {
    "lang_to_id": {"<|en|>": 50259, "<|de|>": 50261}, "suppress_tokens": [1, 2],
    "task_to_id": {"transcribe": 50359, "translate": 50358}, "no_timestamps_token_id": 50363,
    "begin_suppress_tokens": [220, 50257],
}  # fmt: skip


def speech(folder: Path, config: Any = CONFIG, generation: Any = GENERATION) -> Speech:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return speech_of(folder)


def refused(action: Any) -> str:
    with pytest.raises(DecodeError) as caught:
        action()
    return str(caught.value)


def test_a_model_of_many_languages(tmp_path: Path) -> None:
    found = speech(tmp_path)
    assert (found.ear.frames, found.ear.rate, found.length) == (3000, 16000, 448)
    assert found.start("de", "transcribe") == ([50258, 50261, 50359, 50363], False)
    assert found.start(None, "translate") == ([50258, 50358, 50363], True)
    logits = np.zeros(50400)
    logits[[1, 220, 50261, 7]] = 9, 8, 7, 6
    assert found.likeliest(logits) == ("de", 50261)
    assert found.first(logits) == 50261
    assert found.marks(50363) and not found.marks(7)
    assert refused(lambda: found.start("dee", "transcribe")) == (
        "the model has no language 'dee'\n  try: de, en"
    )


def test_a_model_of_one_language(tmp_path: Path) -> None:
    found = speech(tmp_path, CONFIG, {"no_timestamps_token_id": 50362})
    assert found.start(None, "transcribe") == ([50258, 50362], False)
    assert refused(lambda: found.start("de", "transcribe")) == (
        "the model has no language 'de'\n  try: no language: it has one alone"
    )
    assert refused(lambda: found.start(None, "translate")) == (
        "the model has no task 'translate'\n  try: transcribe"
    )


def test_other_folders(tmp_path: Path) -> None:
    assert refused(lambda: speech(tmp_path, {"num_mel_bins": 80})).replace(str(tmp_path), "") == (
        "this is no speech model of Whisper's structure: its configuration says no "
        "max_source_positions, max_target_positions, decoder_start_token_id\n"
        "  in:  \n  try: the folder with config.json that optimum-cli wrote"
    )
    ear = speech(tmp_path).ear
    assert refused(lambda: read_speech(tmp_path, ear, 8)).replace(str(tmp_path), "") == (
        "the folder holds no encoder_model.onnx\n  in:  \n"
        "  try: optimum-cli export onnx --task automatic-speech-recognition-with-past"
    )
