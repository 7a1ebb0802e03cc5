"""Exports a speech model of transformers' classes as two programs: an encoder, which gives the
decoder's keys and values, and a decoder with its cache in buffers.

    encoder(sound) -> heard: the keys and values of each layer, [1, H, S, D]
    decoder(input_ids[1, n], cache_position[n], heard) -> logits[1, n, tokens]

S is dynamic if the length of the audio is.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError, InstallError
from ..frontend import from_torch
from ..graph import Function
from .audio import Ear
from .model import IDS, STEP
from .program import PLACES, decoder_of_program
from .speech_model import SAMPLES, rows_at_most, together

if TYPE_CHECKING:
    from torch.nn import Module

ROWS, HEARD = "rows", "heard"
WEIGHTS = "model*.safetensors"


def has_weights(folder: Path) -> bool:
    """Whether transformers saved a model in the folder."""
    return any(folder.glob(WEIGHTS))


def module_of(folder: Path) -> Module:
    """The model that transformers saved in a folder. Runs no code from the folder. Raises
    InstallError if transformers or torch are missing, and DecodeError."""
    try:
        from transformers import AutoModelForSpeechSeq2Seq
    except ImportError as error:
        raise InstallError(
            f"models that transformers saved need transformers and torch: {error}",
            where=str(folder),
            mend="pip install transformers torch",
        ) from error
    try:
        model: Module = AutoModelForSpeechSeq2Seq.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False,
            attn_implementation="eager", dtype="float32",
        )  # fmt: skip
    except Exception as error:  # many kinds, from missing files to wrong sizes
        first = str(error).strip().split("\n")[0] or type(error).__name__
        what = f"transformers cannot read the model: {first}"
        raise DecodeError(what, where=str(folder), mend="model.save_pretrained(folder)") from error
    return model


def read_speech_module(
    model: Module, ear: Ear, length: int, silent: Sequence[int] = ()
) -> Function:
    """The function of a module, for sound of `ear` and texts of up to `length` tokens. Raises
    DecodeError, ImporterError."""
    import torch

    where = type(model).__name__
    if not hasattr(getattr(model, "model", None), "encoder") or not hasattr(model, "proj_out"):
        raise DecodeError(
            f"this is not a speech model: {where} has no model.encoder and no proj_out",
            mend="transformers.WhisperForConditionalGeneration, or Moonshine's",
        )
    inner: Any = model.eval()
    open_sound = ear.least < ear.samples
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and transformers warn about their own code
        sound = torch.zeros(ear.shape)
        samples, rows = {}, {}
        if open_sound:
            samples = {1: torch.export.Dim(SAMPLES, min=ear.least, max=ear.samples)}
        encoder_program = torch.export.export(
            _encoder(inner), (), {ear.input: sound}, strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
            dynamic_shapes={ear.input: samples},
        )  # fmt: skip
        encoder = from_torch(
            encoder_program, dims={SAMPLES: f"<={ear.samples}"} if open_sound else {}
        )
        own, keys = _caches(inner, sound)
        most = [rows_at_most(encoder, value) for value in encoder.outputs[: len(keys)]]
        tokens = torch.export.Dim("tokens", min=1, max=min(STEP, length))
        if open_sound:
            rows = {2: torch.export.Dim(ROWS, min=1, max=max(most))}
        given = {IDS: torch.zeros(1, 3, dtype=torch.long), PLACES: torch.arange(3), HEARD: keys}
        shapes = {IDS: {1: tokens}, PLACES: {0: tokens}, HEARD: [rows] * len(keys)}
        decoder_program = torch.export.export(
            _decoder(inner, own, length), (), given, dynamic_shapes=shapes, strict=True
        )
    names = [
        n for n in map(str, decoder_program.graph_signature.user_inputs) if n.startswith(HEARD)
    ]
    decoder = decoder_of_program(
        decoder_program, where, length, dict(zip(names, most, strict=True))
    )
    caches = dict(zip(names, encoder.output_names, strict=False))
    return together(encoder, decoder, caches, silent, where)


def _caches(model: Any, sound: Any) -> tuple[list[Any], list[Any]]:
    """The keys and values of each layer: those of one token, and those of the sound."""
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    both = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model.model.decoder(
        input_ids=torch.zeros(1, 1, dtype=torch.long),
        encoder_hidden_states=model.model.encoder(sound).last_hidden_state,
        past_key_values=both,
        use_cache=True,
    )
    own, of_sound = (
        [x for layer in cache.layers for x in (layer.keys, layer.values)]
        for cache in (both.self_attention_cache, both.cross_attention_cache)
    )
    return own, of_sound


def _encoder(model: Any) -> Any:
    """A module that gives the decoder's keys and values of a sound."""
    import torch

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **sound: Any) -> Any:
            return _caches(self.model, *sound.values())[1]

    return Encoder()


def _decoder(model: Any, own: Sequence[Any], length: int) -> Any:
    """The decoder, with its own cache in buffers and the keys and values of the sound as an input.
    own: the keys and values of one token."""
    import torch
    from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticLayer

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.cache = Cache(layers=[StaticLayer(length) for _ in own[::2]])
            for n, layer in enumerate(self.cache.layers):
                layer.lazy_initialization(own[2 * n], own[2 * n + 1])
                self.register_buffer(f"key_cache_{n}", layer.keys, persistent=False)
                self.register_buffer(f"value_cache_{n}", layer.values, persistent=False)
                self.register_buffer(f"length_{n}", layer.cumulative_length, persistent=False)

        def forward(self, input_ids: Any, cache_position: Any, heard: Any) -> Any:
            for layer in self.cache.layers:
                layer.cumulative_length.copy_(cache_position[0])
            pairs = list(zip(heard[::2], heard[1::2], strict=True))
            both = EncoderDecoderCache(self.cache, DynamicCache(pairs))
            unread = torch.zeros(1, heard[0].shape[2], self.model.config.hidden_size)
            x = self.model.model.decoder(
                input_ids=input_ids, encoder_hidden_states=unread, past_key_values=both,
                use_cache=True,
            )  # fmt: skip
            return self.model.proj_out(x.last_hidden_state)

    return Decoder()
