"""A speech model of transformers' Whisper classes in Python: exported as an encoder, which gives
the keys and values that the decoder reads of it, and as a decoder with its cache in buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError
from ..frontend import from_torch
from ..graph import Function
from .audio import Ear
from .model import IDS, STEP
from .program import PLACES, decoder_of_program
from .speech_model import FEATURES, together

if TYPE_CHECKING:
    from torch.nn import Module


def read_speech_module(
    model: Module, ear: Ear, length: int, silent: Sequence[int] = ()
) -> Function:
    """The function of a module: what `ear` hears, and texts of up to `length` tokens. Raises
    DecodeError, ImporterError."""
    import torch

    where = type(model).__name__
    if not hasattr(getattr(model, "model", None), "encoder") or not hasattr(model, "proj_out"):
        raise DecodeError(
            f"this is no speech model: {where} has no model.encoder and no proj_out",
            mend="transformers.WhisperForConditionalGeneration",
        )
    inner: Any = model.eval()
    hearer, sound = _hearer(inner), torch.zeros(1, ear.channels, ear.frames)
    with torch.no_grad():
        keys = hearer(sound)
        heard = torch.export.export(hearer, (), {FEATURES: sound}, strict=False)
        tokens = torch.export.Dim("tokens", min=1, max=min(STEP, length))
        given = {IDS: torch.zeros(1, 3, dtype=torch.long), PLACES: torch.arange(3), "heard": keys}
        shapes = {IDS: {1: tokens}, PLACES: {0: tokens}, "heard": [None] * len(keys)}
        told = torch.export.export(
            _teller(inner, length), (), given, dynamic_shapes=shapes, strict=True
        )
    hear = from_torch(heard)
    names = [name for name in told.graph_signature.user_inputs if str(name).startswith("heard")]
    tell = decoder_of_program(told, where, length, [str(n) for n in names])
    caches = dict(zip(map(str, names), hear.output_names, strict=True))
    return together(hear, tell, caches, silent, where)


def _hearer(model: Any) -> Any:
    """What the decoder's layers read of a sound: keys and values, [1, H, S, D]."""
    import torch

    class Hearer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_features: Any) -> Any:
            x = self.model.model.encoder(input_features).last_hidden_state
            found = []
            for layer in self.model.model.decoder.layers:
                own = layer.encoder_attn
                for part in (own.k_proj, own.v_proj):
                    y = part(x).view(1, x.shape[1], own.num_heads, own.head_dim)
                    found.append(y.transpose(1, 2))
            return found

    return Hearer()


def _teller(model: Any, length: int) -> Any:
    """The decoder with its own cache in buffers, and that of what was heard as an input."""
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

    config = model.config
    heads, layers = config.decoder_attention_heads, config.decoder_layers

    class Teller(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.cache = StaticCache(config=config, max_cache_len=length)
            self.cache.layers = self.cache.layers[:layers]
            width = config.d_model // heads
            self.cache.early_initialization(1, heads, width, model.dtype, model.device)
            for n, layer in enumerate(self.cache.layers):
                self.register_buffer(f"key_cache_{n}", layer.keys, persistent=False)
                self.register_buffer(f"value_cache_{n}", layer.values, persistent=False)
                self.register_buffer(f"length_{n}", layer.cumulative_length, persistent=False)

        def forward(self, input_ids: Any, cache_position: Any, heard: Any) -> Any:
            for layer in self.cache.layers:
                layer.cumulative_length.copy_(cache_position[0])
            pairs = [(heard[2 * n], heard[2 * n + 1]) for n in range(layers)]
            both = EncoderDecoderCache(self.cache, DynamicCache(pairs))
            unread = torch.zeros(1, pairs[0][0].shape[2], config.d_model)
            x = self.model.model.decoder(
                input_ids=input_ids, encoder_hidden_states=unread, past_key_values=both,
                use_cache=True,
            )  # fmt: skip
            return self.model.proj_out(x.last_hidden_state)

    return Teller()
