"""Decoders of torch.export with a static cache, and transformers' modules, on boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.model import STEP
from mlc_deploy.decode.program import read_program_decoder
from mlc_deploy.errors import DecodeError
from tests.decode.tiny import program_of
from tests.models.test_decoders import COUNT, FAMILIES, PROMPT, built, by_transformers
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

pytestmark = [
    pytest.mark.decoders,
    pytest.mark.filterwarnings("ignore"),  # of the exporters
]

LENGTH = len(PROMPT) + COUNT
ON_ARM = {"llama": "aarch64", "gpt2": "armv7"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_of_transformers(family: str, local: Session) -> None:
    model = built(family)
    right = by_transformers(model, COUNT)
    decoder = mlc.load_decoder(model, "host", length=LENGTH)
    assert list(mlc.generate(decoder, PROMPT, local, tokens=COUNT)) == right
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    # By a target whose vectors divide these columns: for longer ones they are filled up.
    program = program_of(read_program_decoder(model, LENGTH), "aarch64")
    assert len(program.weights) < 1.02 * weights
    assert model.generation_config.cache_implementation is None  # it is as it was
    with mlc.Text(local.load(decoder.model)) as text:
        assert list(text.reply(PROMPT, 3)) == right[:3]
        assert [step.tokens for step in text.steps] == [len(PROMPT), 1, 1]


@pytest.mark.parametrize("family", ON_ARM)
def test_a_file_of_a_program(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As transformers' wrapper is exported, with steps of any length and torch's attention."""
    import torch

    model = built(family)
    right = by_transformers(model, COUNT)
    file = tmp_path / "model.pt2"
    model.set_attn_implementation("sdpa")
    torch.export.save(program(model), file)
    board = board_named(request, ON_ARM[family])
    reply = mlc.generate(tmp_path, PROMPT, board, tokens=COUNT, target=TARGETS[ON_ARM[family]])
    assert list(reply) == right
    assert reply.summary.instructions


def program(model: Any, count: int | None = None) -> Any:
    """count: the tokens of a step; None leaves it open."""
    import torch
    from transformers.integrations import executorch

    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    module = executorch.TorchExportableModuleWithStaticCache(model, 1, LENGTH)
    ids = torch.tensor([PROMPT[:count]])
    shapes = None
    if count is None:
        tokens = torch.export.Dim("tokens", max=STEP)
        shapes = {"input_ids": {1: tokens}, "cache_position": {0: tokens}}
    given = {"input_ids": ids, "cache_position": torch.arange(ids.shape[1])}
    with torch.no_grad():
        return torch.export.export(module, (), given, dynamic_shapes=shapes, strict=True)


def test_a_program_of_one_token(local: Session) -> None:
    """What convert_and_export_with_cache makes by default."""
    model = built("qwen2")
    right = by_transformers(model, 16)
    decoder = mlc.load_decoder(program(model, 1), "host")
    with mlc.Text(local.load(decoder.model)) as one, mlc.Text(local.load(decoder.model)) as other:
        assert list(one.reply(PROMPT, 8)) == right[:8]
        assert [step.tokens for step in one.steps] == [1] * (len(PROMPT) + 7)
        other.load_state(one.save_state())
        assert list(other.reply(right[7:8], 8)) == right[8:]


def test_logits_of_a_program(local: Session) -> None:
    import torch

    model = built("llama")
    with torch.no_grad():
        right = model(input_ids=torch.tensor([PROMPT])).logits[0].numpy()
    with mlc.Text(local.load(mlc.load_decoder(model, "host", length=16).model)) as text:
        for token, logits in zip(PROMPT, right, strict=True):
            text.read([token])
            np.testing.assert_allclose(text.logits(), logits, rtol=1e-3, atol=1e-3)


def test_refused_programs(tmp_path: Path) -> None:
    import torch

    class Other(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    class Elsewhere(torch.nn.Module):
        """Writes its rows one place further on than it is told; or, by itself, none."""

        def __init__(self, behind: int | None) -> None:
            super().__init__()
            self.behind = behind
            self.register_buffer("keys", torch.zeros(1, 2, 16, 4))

        def forward(self, input_ids: Any, cache_position: Any) -> Any:
            rows = input_ids[:, None, :, None].expand(1, 2, -1, 4).float()
            if self.behind is not None:
                self.keys.index_copy_(2, cache_position + self.behind, rows)
            return rows.sum(1) + self.keys.sum()

    def refused(model: Any, **options: Any) -> str:
        with pytest.raises(DecodeError) as caught:
            mlc.load_decoder(model, "host", **options)
        return str(caught.value).replace(str(tmp_path), "")

    other = tmp_path / "other.pt2"
    torch.export.save(torch.export.export(Other(), (torch.zeros(3),)), other)
    assert refused(other) == (
        "this program is not a text decoder: its inputs are x\n"
        "  in:  /other.pt2\n"
        "  try: a module of input_ids [1, tokens] and cache_position [tokens] whose cache is in "
        "buffers, such as transformers' TorchExportableModuleWithStaticCache"
    )
    assert refused(Elsewhere(1)) == (
        "the rows that 'decoder' writes into its caches are not those at 'cache_position': "
        "'index_copy' decides them, too\n"
        "  in:  the program\n  try: cache.index_copy_(2, cache_position, rows)"
    )
    assert refused(Elsewhere(None)) == (
        "'decoder' writes no rows into a cache that it keeps\n"
        "  in:  the program\n"
        "  try: a module whose keys and values are buffers, which index_copy_ writes"
    )
    given = torch.zeros(1, 2, dtype=torch.long), torch.arange(2)
    two = torch.export.export(Elsewhere(0), given)
    assert refused(two) == (
        "'decoder' reads 2 tokens at once, no more and no fewer\n"
        "  in:  the program\n"
        "  try: a program exported with a dynamic length of its input, or of one token"
    )
    assert refused(two, length=8) == (
        "the program has a cache of 16 tokens, not 8\n"
        "  in:  the program\n"
        "  try: --max-length 16, or none; or a program exported with 8"
    )
    assert refused(two, window=8) == (
        "a decoder of PyTorch has a cache of its own, which takes no window\n"
        "  in:  ExportedProgram, window=8\n  try: no window; or a model of ONNX"
    )
