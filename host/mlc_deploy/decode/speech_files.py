"""Reads from a speech model's files, or its module, what it hears, and which tokens begin a text,
end it and never occur in it. The files are those of transformers: config.json,
generation_config.json, preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from ..files.fields import Field
from ..files.limits import (
    SOUND_CHANNELS,
    SOUND_FRAMES,
    SOUND_RATE,
    SOUND_WINDOW,
    TOKENS,
    Limit,
)
from .audio import Ear, Spectra, Waves
from .files import Config, json_of

TASKS = ("transcribe", "translate")
# Moonshine (Jeffries et al. 2024): kernels and strides of the encoder's convolutions, and its
# authors' limit of tokens per second of sound.
MOONSHINE = ((127, 64), (7, 3), (3, 2))
TOKENS_PER_SECOND = 6.5


@dataclass(frozen=True, slots=True)
class Speech:
    """ear: the audio of a chunk. length: the most tokens of a text. begin, ends:
    the tokens that begin and end it. languages and tasks: their tokens; empty for a model of one.
    plain: the token for a text without times. silent: tokens that are never written; late: tokens
    that are never the first."""

    ear: Ear
    length: int
    begin: int
    ends: frozenset[int]
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    plain: int | None = None
    silent: tuple[int, ...] = ()
    late: tuple[int, ...] = ()

    def start(self, language: str | None, task: str) -> tuple[list[int], bool]:
        """The tokens that begin a text, and whether the language's token must be detected and put
        after the first. Raises DecodeError for an unknown language or task."""
        found = [self.begin]
        if language is not None:
            token = self.languages.get(f"<|{language}|>")
            if token is None:
                known = [name.strip("<|>") for name in self.languages]
                near = get_close_matches(language, known, 3, 0.3) or known[:5]
                raise DecodeError(
                    f"the model has no language '{language}'",
                    mend=f"{', '.join(near)}" if known else "no language: it has one alone",
                )
            found.append(token)
        if task in self.tasks:
            found.append(self.tasks[task])
        elif task != TASKS[0]:
            known = [*self.tasks] or [TASKS[0]]
            raise DecodeError(f"the model has no task '{task}'", mend=", ".join(known))
        if self.plain is not None:
            found.append(self.plain)
        return found, bool(self.languages) and language is None

    def likeliest(self, logits: NDArray[Any]) -> tuple[str, int]:
        """The most likely language and its token, by the logits after the first token."""
        name = max(self.languages, key=lambda name: float(logits[self.languages[name]]))
        return name.strip("<|>"), self.languages[name]

    def first(self, logits: NDArray[Any]) -> int:
        """The first token of the text."""
        scores = logits.copy()
        scores[[*self.silent, *self.late]] = -np.inf
        return int(scores.argmax())

    def marks(self, token: int) -> bool:
        """Whether a token is a mark, such as a language's, and not text."""
        return token in (self.begin, self.plain, *self.languages.values(), *self.tasks.values())


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of models. needed: the numbers that a configuration must have, and their limits; the
    last one is the most tokens of a text. ear: makes the Ear from the model's configuration, the
    preprocessor's, and the chunk length in seconds that the user asks for, if any."""

    needed: Mapping[str, Limit]
    ear: Callable[[Config, Config, float | None], Ear]


def _whisper(config: Config, ear: Config, seconds: float | None) -> Ear:
    usual = Spectra()
    made = Spectra(
        channels=_positive(config, "num_mel_bins", SOUND_CHANNELS, usual.channels),
        # the encoder's convolutions halve them
        frames=2 * _positive(config, "max_source_positions", SOUND_FRAMES, usual.frames // 2),
        rate=_positive(ear, "sampling_rate", SOUND_RATE, usual.rate),
        hop=_positive(ear, "hop_length", SOUND_WINDOW, usual.hop),
        window=_positive(ear, "n_fft", SOUND_WINDOW, usual.window),
    )
    if seconds is not None and seconds * made.rate != made.samples:
        raise DecodeError(
            f"the model's chunk length is {made.samples / made.rate:g} s, not {seconds:g}",
            mend=f"without a chunk length, or {made.samples / made.rate:g}",
        )
    return made


def _moonshine(config: Config, ear: Config, seconds: float | None) -> Ear:
    rate = _positive(ear, "sampling_rate", SOUND_RATE, Waves().rate)
    least = 2  # rows of the encoder's result: torch.export does not take 1 for a dynamic size
    for kernel, stride in reversed(MOONSHINE):
        least = (least - 1) * stride + kernel
    positions = _positive(config, "max_position_embeddings", SOUND_FRAMES, 1)
    asked = positions / TOKENS_PER_SECOND if seconds is None else seconds
    if asked * rate < least:
        raise DecodeError(
            f"{asked:g} s of audio are too short for the model",
            mend=f"{math.ceil(least / rate * 100) / 100:g} s or more",
        )
    return Waves(rate=rate, least=least, samples=int(asked * rate))


# By `model_type` in config.json.
KINDS: Mapping[str, Kind] = {
    "whisper": Kind(
        {
            "num_mel_bins": SOUND_CHANNELS,
            "max_source_positions": SOUND_FRAMES,
            "max_target_positions": TOKENS,
        },
        _whisper,
    ),
    "moonshine": Kind({"max_position_embeddings": SOUND_FRAMES}, _moonshine),
}


def speech_of(folder: Path, seconds: float | None = None) -> Speech:
    """Reads the files of a folder. seconds: the longest part of sound, for a model that leaves it
    open. Raises DecodeError."""
    config = json_of([folder], "config.json")
    ear = json_of([folder], "preprocessor_config.json")
    generation = json_of([folder], "generation_config.json")
    return _speech(config, generation, ear, str(folder), seconds)


def speech_of_module(module: object, seconds: float | None = None) -> Speech:
    """Reads the configurations of a transformers module. Raises DecodeError."""
    parts: list[Any] = [getattr(module, key, None) for key in ("config", "generation_config")]
    where = type(module).__name__
    config, generation = (
        Config(Field(p.to_dict() if hasattr(p, "to_dict") else {}), where) for p in parts
    )
    return _speech(config, generation, Config(Field({}), where), where, seconds)


def _speech(
    config: Config, generation: Config, ear: Config, where: str, seconds: float | None
) -> Speech:
    of_type = config.text("model_type") or "whisper"  # older files of Whisper lack it
    kind = KINDS.get(of_type)
    if kind is None:
        raise DecodeError(
            f"models of type '{of_type}' cannot be used for speech to text",
            where=where,
            mend=f"a model of type {' or '.join(KINDS)}",
        )
    found = {key: config.whole(key, most) for key, most in kind.needed.items()}
    config = config.or_else(generation)
    begin = config.tokens("decoder_start_token_id")
    lacking = [key for key, value in found.items() if not value]
    lacking += ["decoder_start_token_id"] if begin is None else []
    if lacking or begin is None:
        raise DecodeError(
            f"this is not a {of_type.capitalize()} model: its configuration "
            f"lacks {', '.join(lacking)}",
            where=where,
            mend="the folder with config.json that optimum-cli or transformers wrote",
        )
    return Speech(
        ear=kind.ear(config, ear, seconds),
        length=list(found.values())[-1] or 0,
        begin=begin,
        ends=frozenset(config.token_list("eos_token_id")),
        languages=config.named_tokens("lang_to_id"),
        tasks=config.named_tokens("task_to_id"),
        plain=next(iter(config.token_list("no_timestamps_token_id")), None),
        silent=tuple(config.token_list("suppress_tokens")),
        late=tuple(config.token_list("begin_suppress_tokens")),
    )


def _positive(config: Config, key: str, most: Limit, usual: int) -> int:
    return config.whole(key, most) or usual
