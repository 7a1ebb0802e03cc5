"""Decoders of transformers, small and of random weights, on boards: the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.model import STEP
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

pytestmark = [
    pytest.mark.decoders,
    pytest.mark.filterwarnings("ignore"),  # of the exporters
]

VOCABULARY, COUNT, WINDOW = 96, 64, 12
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23]
TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma": {**TOKENS, **SIZES, "head_dim": 8},
    "gpt2": {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "llama": {**TOKENS, **SIZES},
    "mistral": {**TOKENS, **SIZES, "sliding_window": WINDOW},
    "phi": {**TOKENS, **SIZES, "partial_rotary_factor": 0.5},
    "qwen2": {**TOKENS, **SIZES},
    "qwen3": {**TOKENS, **SIZES, "head_dim": 8},
}
SEEDS = {"qwen2": 2}  # with which a text does not repeat itself soon
ON_ARM = {"llama": "aarch64", "gpt2": "armv7", "gemma": "aarch64", "phi": "armv7"}


def built(family: str) -> Any:
    """A model of transformers whose texts do not repeat from their beginning on."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    options = dict(FAMILIES[family])
    if family == "gpt2":
        options.pop("max_position_embeddings")
    config = transformers.AutoConfig.for_model(family, **options)
    torch.set_num_threads(1)
    torch.manual_seed(SEEDS.get(family, 1))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.mul_(1 if "wte" in name or "wpe" in name else 8)
            elif name.endswith("bias"):
                weights.normal_(0, 0.1)
    return model.eval()


def exported(model: Any, folder: Path) -> Path:
    """The model with its cache as inputs and outputs, and its configuration beside it."""
    import torch
    from transformers.cache_utils import DynamicCache

    layers, config = model.config.num_hidden_layers, model.config
    kept = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = DynamicCache([(past[2 * n], past[2 * n + 1]) for n in range(layers)])
            done = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            every = [x for own in done.past_key_values.layers for x in (own.keys, own.values)]
            return (done.logits, *every)

    before, count = 5, 3
    past = [torch.zeros(1, kept, before, width) for _ in range(2 * layers)]
    given = (
        torch.zeros(1, count, dtype=torch.long), torch.ones(1, before + count, dtype=torch.long),
        torch.arange(before, before + count)[None], past,
    )  # fmt: skip
    parts = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    file = folder / "model.onnx"
    torch.onnx.export(
        Cached(), given, str(file), dynamo=True, opset_version=20, external_data=False,
        verbose=False,
        input_names=["input_ids", "attention_mask", "position_ids",
                     *(f"past_key_values.{part}" for part in parts)],
        output_names=["logits", *(f"present.{part}" for part in parts)],
        dynamic_shapes=({1: "sequence"}, {1: "total"}, {1: "sequence"}, [{2: "past"}] * len(past)),
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return file


def by_transformers(model: Any, count: int) -> list[int]:
    """Without a cache: each token from all before it."""
    import torch

    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_transformers(
    family: str, tmp_path: Path, local: Session, request: pytest.FixtureRequest
) -> None:
    model = built(family)
    right = by_transformers(model, COUNT)
    assert len(set(right)) >= 8
    file = exported(model, tmp_path)
    length = WINDOW - 1 + STEP if family == "mistral" else len(PROMPT) + COUNT
    decoder = mlc.load_decoder(file, "host", length=length)
    reply = mlc.generate(decoder, PROMPT, local, tokens=COUNT)
    assert list(reply) == right
    if family == "mistral":
        assert decoder.beside.window == WINDOW and length < len(PROMPT) + COUNT
    if family in ON_ARM:
        board = board_named(request, ON_ARM[family])
        on_arm = mlc.load_decoder(file, TARGETS[ON_ARM[family]], length=length)
        emulated = mlc.generate(on_arm, PROMPT, board, tokens=COUNT)
        assert list(emulated) == right
        assert emulated.summary.instructions
    with mlc.Text(local.load(decoder.model)) as one, mlc.Text(local.load(decoder.model)) as other:
        assert list(one.reply(PROMPT, 20)) == right[:20]
        other.load_state(one.save_state())
        assert list(other.reply(right[19:20], 20)) == right[20:40]


def test_logits_of_transformers(tmp_path: Path, local: Session) -> None:
    import torch

    model = built("llama")
    file = exported(model, tmp_path)
    with torch.no_grad():
        right = model(input_ids=torch.tensor([PROMPT])).logits[0].numpy()
    with mlc.Text(local.load(mlc.load_decoder(file, "host", length=32).model)) as text:
        for token, logits in zip(PROMPT, right, strict=True):
            text.read([token])
            np.testing.assert_allclose(text.logits(), logits, rtol=1e-3, atol=1e-3)
