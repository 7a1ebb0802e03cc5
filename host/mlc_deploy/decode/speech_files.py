"""What the files of a speech model, or its module, say of it: what it hears, and which tokens
begin, end and never are in a text. The files are those of transformers: config.json,
generation_config.json, preprocessor_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from .audio import Ear
from .files import json_of

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, slots=True)
class Speech:
    """ear: what the model hears at once. length: tokens of a text, at most. begin: the token that
    begins it. languages and tasks: the tokens of each, none in a model of one. plain: the token for
    a text without times. silent and late: tokens that are never said, and not first."""

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
        """The tokens that a text begins with, and whether the language's is to be found out and put
        behind the first. Raises DecodeError for what the model does not know."""
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
        """The language that these logits behind the first token say."""
        name = max(self.languages, key=lambda name: float(logits[self.languages[name]]))
        return name.strip("<|>"), self.languages[name]

    def first(self, logits: NDArray[Any]) -> int:
        """The first token that is said."""
        scores = logits.copy()
        scores[[*self.silent, *self.late]] = -np.inf
        return int(scores.argmax())

    def marks(self, token: int) -> bool:
        """Whether a token is of no text, such as that of a language."""
        return token in (self.begin, self.plain, *self.languages.values(), *self.tasks.values())


def speech_of(folder: Path) -> Speech:
    """What the files of a folder say. Raises DecodeError."""
    config = json_of([folder], "config.json")
    ear = json_of([folder], "preprocessor_config.json")
    return _speech(config, json_of([folder], "generation_config.json"), ear, str(folder))


def speech_of_module(module: object) -> Speech:
    """What a model of transformers says of itself. Raises DecodeError."""
    parts: list[Any] = [getattr(module, key, None) for key in ("config", "generation_config")]
    config, generation = (p.to_dict() if hasattr(p, "to_dict") else {} for p in parts)
    return _speech(config, generation, {}, type(module).__name__)


def _speech(
    config: Mapping[str, Any], generation: Mapping[str, Any], ear: Mapping[str, Any], where: str
) -> Speech:
    needed = ("num_mel_bins", "max_source_positions", "max_target_positions")
    lacking = [key for key in needed if type(config.get(key)) is not int]
    said = {**config, **{k: v for k, v in generation.items() if v is not None}}
    begin = said.get("decoder_start_token_id")
    if lacking or type(begin) is not int:
        raise DecodeError(
            "this is no speech model of Whisper's structure: its configuration says no "
            + ", ".join([*lacking, *([] if type(begin) is int else ["decoder_start_token_id"])]),
            where=where,
            mend="the folder with config.json that optimum-cli wrote",
        )
    usual = Ear()
    hears = Ear(
        channels=config["num_mel_bins"],
        frames=2 * config["max_source_positions"],  # the encoder's convolutions halve them
        rate=_whole(ear, "sampling_rate", usual.rate),
        hop=_whole(ear, "hop_length", usual.hop),
        window=_whole(ear, "n_fft", usual.window),
    )
    return Speech(
        ear=hears,
        length=config["max_target_positions"],
        begin=begin,
        ends=frozenset(_tokens(said.get("eos_token_id"))),
        languages=_named(said.get("lang_to_id")),
        tasks=_named(said.get("task_to_id")),
        plain=next(iter(_tokens(said.get("no_timestamps_token_id"))), None),
        silent=tuple(_tokens(said.get("suppress_tokens"))),
        late=tuple(_tokens(said.get("begin_suppress_tokens"))),
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
