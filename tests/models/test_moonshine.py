"""Moonshine, small and of random weights, on boards: the same tokens as by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.text import Text
from mlc_rpc import Session
from tests.cli.command import Command
from tests.cli.conftest import mlc_deploy
from tests.models.test_speech import exported, sound, to_wav
from tests.sessions import TARGETS, aarch64, local

__all__ = ["aarch64", "local", "mlc_deploy"]  # fixtures

pytestmark = [
    pytest.mark.decoders,
    pytest.mark.filterwarnings("ignore"),  # of the exporters
]

COUNT, SECONDS = 64, 2  # tokens of a text, and sound that is heard at once
SIZES: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 40, "intermediate_size": 64, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4, "pad_head_dim_to_multiple_of": 8,
    "max_position_embeddings": 80, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    "decoder_start_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    """A model whose texts do not repeat from their beginning on."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    config = transformers.MoonshineConfig(**SIZES, attn_implementation="eager")
    made = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if weights.dim() > 1:
                weights.mul_(20 if "embed" in name else 12)
            elif name.endswith("bias"):
                weights.normal_(0, 0.1)
    return made


@pytest.fixture(scope="module")
def transcriber(model: Any) -> mlc.Transcriber:
    return mlc.load_transcriber(model, "host", seconds=SECONDS)


def as_torch(samples: np.ndarray) -> Any:
    import torch

    return torch.tensor(samples[None], dtype=torch.float32)


def by_transformers(model: Any, samples: np.ndarray) -> list[int]:
    """The tokens behind the first, by greedy generate, which pads nothing."""
    import torch

    with torch.no_grad():
        found = model.generate(as_torch(samples), max_new_tokens=COUNT, do_sample=False)
    tokens = [int(t) for t in found[0]][1:]
    return tokens[: tokens.index(2)] if 2 in tokens else tokens


def test_sounds_of_any_length(model: Any, transcriber: mlc.Transcriber, local: Session) -> None:
    """Each is heard as it is, without silence behind it; one that is longer is cut."""
    for seed, seconds in enumerate((1.0, 0.7, 1.9)):
        right = by_transformers(model, sound(seed, seconds))
        assert len(right) >= 50 and len(set(right)) >= 8
        heard = mlc.transcribe(transcriber, sound(seed, seconds), local, tokens=COUNT)
        assert list(heard) == right
        assert heard.summary.sound_s == pytest.approx(seconds)
    longer = sound(3, SECONDS + 0.5)
    parts = longer[: SECONDS * 16000], longer[SECONDS * 16000 :]
    both = mlc.transcribe(transcriber, longer, local, tokens=COUNT)
    assert list(both) == [token for part in parts for token in by_transformers(model, part)]


def test_numbers(model: Any, transcriber: mlc.Transcriber, local: Session) -> None:
    """What the decoder reads of the encoder, and the logits of each token."""
    import torch

    samples = sound(1, 0.7)
    right = by_transformers(model, samples)
    with torch.no_grad():
        encoded = model.model.encoder(as_torch(samples)).last_hidden_state[0].numpy()
        wanted = model(as_torch(samples), decoder_input_ids=torch.tensor([[1, *right]])).logits[0]
    weights = model.model.decoder.layers[0].encoder_attn.k_proj.weight.detach().numpy()
    ear = transcriber.speech.ear
    with Text(local.load(transcriber.model), given={ear.input: ear.features(samples)}) as text:
        for token, logits in zip([1, *right], wanted.numpy(), strict=True):
            text.read([token])
            np.testing.assert_allclose(text.logits(), logits, rtol=1e-3, atol=1e-3)
        states = text.save_state()
    rows = int(states["heard_rows"])
    assert rows == len(encoded)
    keys = states["heard_0"][0, :, :rows].transpose(1, 0, 2).reshape(rows, -1)
    np.testing.assert_allclose(keys, encoded @ weights.T, rtol=1e-4, atol=1e-4)


def test_files_of_optimum(model: Any, tmp_path: Path, aarch64: Session) -> None:
    folder = exported(model, tmp_path / "moonshine", False, as_torch(sound(0)), is_open=True)
    loaded = mlc.load_transcriber(folder, TARGETS["aarch64"], seconds=SECONDS)
    for seed, seconds in ((1, 0.7), (2, 1.9)):
        heard = mlc.transcribe(loaded, sound(seed, seconds), aarch64, tokens=COUNT)
        assert list(heard) == by_transformers(model, sound(seed, seconds))
    assert heard.summary.instructions


def test_the_command(model: Any, tmp_path: Path, mlc_deploy: Command) -> None:
    """Of a folder that transformers wrote, and of what was saved."""
    folder = tmp_path / "moonshine"
    model.save_pretrained(folder)
    to_wav(tmp_path / "said.wav", sound(0, 1.5))
    tokenizer = {
        "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "unk_token": "w0",
                  "vocab": {f"w{n}": n for n in range(120)}},
    }  # fmt: skip
    right = [*by_transformers(model, sound(0, 1.5)[:16000]),
             *by_transformers(model, sound(0, 1.5)[16000:])]  # fmt: skip
    options = ["--audio", str(tmp_path / "said.wav"), "--board", "local://"]
    options += ["--tokens", str(COUNT)]
    saved = folder / "tiny.mlc"
    first = mlc_deploy("transcribe", folder, *options, "--seconds", "1", "--save", saved)
    assert (first.status, first.stdout) == (0, f"{', '.join(map(str, right))}\n"), first.stderr
    assert " audio     1.5 s, encoded in " in first.stderr
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    again = mlc_deploy("transcribe", saved, *options)
    assert again.stdout == f"{''.join(f'w{token}' for token in right)}\n", again.stderr
