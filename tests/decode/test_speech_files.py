"""What the files of a speech model say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_deploy.decode.speech import load_transcriber
from mlc_deploy.decode.speech_files import Speech, speech_of
from mlc_deploy.decode.speech_model import read_speech
from mlc_deploy.errors import DecodeError, InstallError

CONFIG = {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448,
          "decoder_start_token_id": 50258, "eos_token_id": 50257}  # fmt: skip
GENERATION = {
    "lang_to_id": {"<|en|>": 50259, "<|de|>": 50261}, "suppress_tokens": [1, 2],
    "task_to_id": {"transcribe": 50359, "translate": 50358}, "no_timestamps_token_id": 50363,
    "begin_suppress_tokens": [220, 50257],
}  # fmt: skip

MOONSHINE = {"model_type": "moonshine", "max_position_embeddings": 194,
             "decoder_start_token_id": 1, "eos_token_id": 2}  # fmt: skip


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
    assert (found.ear.shape, found.ear.rate, found.length) == ((1, 80, 3000), 16000, 448)
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


def test_a_model_that_hears_samples(tmp_path: Path) -> None:
    """As much of them as its longest text can be about, at 6.5 tokens per second, or as asked."""
    found = speech(tmp_path, MOONSHINE, {})
    assert (found.ear.input, found.ear.least, found.length) == ("input_values", 1279, 194)
    assert found.ear.samples == int(194 / 6.5 * 16000)
    assert found.start(None, "transcribe") == ([1], False) and found.ends == {2}
    assert speech_of(tmp_path, 2.5).ear.shape == (1, 40000)
    assert refused(lambda: speech_of(tmp_path, 0.05)) == (
        "0.05 s of audio are too short for the model\n  try: 0.08 s or more"
    )


def test_seconds_of_a_model_that_leaves_none_open(tmp_path: Path) -> None:
    speech(tmp_path)
    assert speech_of(tmp_path, 30).ear.samples == 480000
    assert refused(lambda: speech_of(tmp_path, 10)) == (
        "the model's chunk length is 30 s, not 10\n  try: without a chunk length, or 30"
    )


def test_other_types(tmp_path: Path) -> None:
    found = refused(lambda: speech(tmp_path, {"model_type": "bert"})).replace(str(tmp_path), "")
    assert found == (
        "models of type 'bert' cannot be used for speech to text\n  in:  \n"
        "  try: a model of type whisper or moonshine"
    )
    found = refused(lambda: speech(tmp_path, {"model_type": "moonshine"}, {}))
    assert found.replace(str(tmp_path), "") == (
        "this is not a Moonshine model: its configuration lacks "
        "max_position_embeddings, decoder_start_token_id\n"
        "  in:  \n  try: the folder with config.json that optimum-cli or transformers wrote"
    )


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "model.safetensors").write_bytes(b"")
    speech(tmp_path, MOONSHINE, {})
    with pytest.raises(InstallError) as caught:
        load_transcriber(tmp_path, "host")
    assert str(caught.value).replace(str(tmp_path), "") == (
        "models that transformers saved need transformers and torch: import of transformers halted;"
        " None in sys.modules\n  in:  \n  try: pip install transformers torch"
    )


def test_other_folders(tmp_path: Path) -> None:
    assert refused(lambda: speech(tmp_path, {"num_mel_bins": 80})).replace(str(tmp_path), "") == (
        "this is not a Whisper model: its configuration lacks "
        "max_source_positions, max_target_positions, decoder_start_token_id\n"
        "  in:  \n  try: the folder with config.json that optimum-cli or transformers wrote"
    )
    ear = speech(tmp_path).ear
    assert refused(lambda: read_speech(tmp_path, ear, 8)).replace(str(tmp_path), "") == (
        "the folder holds no encoder_model.onnx\n  in:  \n"
        "  try: optimum-cli export onnx --task automatic-speech-recognition-with-past"
    )
