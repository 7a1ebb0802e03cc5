"""Reads from a speech model's files, or its module, what it hears, and which tokens begin a text,
end it and never occur in it. The files are those of transformers: config.json,
generation_config.json, preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from .audio import Ear, Spectra, Waves
from .files import json_of

TASKS = ("transcribe", "translate")
# Moonshine (Jeffries et al. 2024): kernels and strides of the encoder's convolutions, and its
# authors' limit of tokens per second of sound.
MOONSHINE = ((127, 64), (7, 3), (3, 2))
TOKENS_PER_SECOND = 6.5


@dataclass(frozen=True, slots=True)
class Speech:
    """ear: the sound that the model hears at once. length: the most tokens of a text. begin, ends:
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
        behind the first. Raises DecodeError for an unknown language or task."""
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
        """The likeliest language and its token, by the logits behind the first token."""
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
    """A type of models. needed: the numbers that a configuration must have; the last one is the
    most tokens of a text. ear: makes the Ear from the model's configuration, the preprocessor's,
    and the seconds that the user wants to be heard at once, if any."""

    needed: tuple[str, ...]
    ear: Callable[[Mapping[str, Any], Mapping[str, Any], float | None], Ear]


def _whisper(config: Mapping[str, Any], ear: Mapping[str, Any], seconds: float | None) -> Ear:
    usual = Spectra()
    made = Spectra(
        channels=config["num_mel_bins"],
        frames=2 * config["max_source_positions"],  # the encoder's convolutions halve them
        rate=_whole(ear, "sampling_rate", usual.rate),
        hop=_whole(ear, "hop_length", usual.hop),
        window=_whole(ear, "n_fft", usual.window),
    )
    if seconds is not None and seconds * made.rate != made.samples:
        raise DecodeError(
            f"the model hears {made.samples / made.rate:g} s at once, not {seconds:g}",
            mend=f"no seconds, or {made.samples / made.rate:g}",
        )
    return made


def _moonshine(config: Mapping[str, Any], ear: Mapping[str, Any], seconds: float | None) -> Ear:
    rate = _whole(ear, "sampling_rate", Waves().rate)
    least = 2  # rows of the encoder's result: torch.export does not take 1 for an open size
    for kernel, stride in reversed(MOONSHINE):
        least = (least - 1) * stride + kernel
    asked = config["max_position_embeddings"] / TOKENS_PER_SECOND if seconds is None else seconds
    if asked * rate < least:
        raise DecodeError(
            f"{asked:g} s of sound are too short for the model",
            mend=f"{math.ceil(least / rate * 100) / 100:g} s or more",
        )
    return Waves(rate=rate, least=least, samples=int(asked * rate))


# By `model_type` in config.json.
KINDS: Mapping[str, Kind] = {
    "whisper": Kind(("num_mel_bins", "max_source_positions", "max_target_positions"), _whisper),
    "moonshine": Kind(("max_position_embeddings",), _moonshine),
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
    config, generation = (p.to_dict() if hasattr(p, "to_dict") else {} for p in parts)
    return _speech(config, generation, {}, type(module).__name__, seconds)


def _speech(
    config: Mapping[str, Any], generation: Mapping[str, Any], ear: Mapping[str, Any], where: str,
    seconds: float | None,
) -> Speech:  # fmt: skip
    of_type = config.get("model_type", "whisper")  # older files of Whisper lack it
    kind = KINDS.get(of_type)
    if kind is None:
        raise DecodeError(
            f"models of type '{of_type}' are not known to write what is said",
            where=where,
            mend=f"a model of type {' or '.join(KINDS)}",
        )
    lacking = [key for key in kind.needed if type(config.get(key)) is not int]
    config = {**config, **{k: v for k, v in generation.items() if v is not None}}
    begin = config.get("decoder_start_token_id")
    lacking += [] if type(begin) is int else ["decoder_start_token_id"]
    if lacking or type(begin) is not int:
        raise DecodeError(
            f"this is no speech model of {of_type.capitalize()}'s structure: its configuration "
            f"says no {', '.join(lacking)}",
            where=where,
            mend="the folder with config.json that optimum-cli or transformers wrote",
        )
    return Speech(
        ear=kind.ear(config, ear, seconds),
        length=config[kind.needed[-1]],
        begin=begin,
        ends=frozenset(_tokens(config.get("eos_token_id"))),
        languages=_named(config.get("lang_to_id")),
        tasks=_named(config.get("task_to_id")),
        plain=next(iter(_tokens(config.get("no_timestamps_token_id"))), None),
        silent=tuple(_tokens(config.get("suppress_tokens"))),
        late=tuple(_tokens(config.get("begin_suppress_tokens"))),
    )


def _whole(values: Mapping[str, Any], key: str, usual: int) -> int:
    found = values.get(key)
    return found if type(found) is int and found > 0 else usual


def _tokens(found: object) -> Sequence[int]:
    every = found if isinstance(found, list) else [found]
    return [token for token in every if type(token) is int and token >= 0]


def _named(found: object) -> Mapping[str, int]:
    own = found if isinstance(found, dict) else {}
    return {name: token for name, token in own.items() if type(token) is int}
