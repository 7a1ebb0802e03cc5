"""Converts text to tokens and back by Hugging Face's `tokenizers`, and chats to text by the
tokenizer's template. The extra `text` has both packages."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..driver.confined import Confined, Refused
from ..errors import DecodeError
from ..files.limits import (
    TEMPLATE_MEMORY,
    TEMPLATE_SECONDS,
    TOKENIZER_BYTES,
    TOKENIZER_MEMORY,
    TOKENIZER_RATIO,
    TOKENIZER_SECONDS,
)
from ..files.outside import open_file
from . import strangers
from .files import TOKENIZER, Beside

R = TypeVar("R")

STRANGERS = strangers.__name__
EXTRA = "pip install 'mlc-deploy[text]'"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the decoding of a character's first bytes


def load_tokenizer(found: Beside, model: Path) -> Tokenizer:
    """The tokenizer of a model. Raises DecodeError if the extra or the file is missing."""
    _require("tokenizers", "text needs the package tokenizers")
    if found.tokenizer is None:
        raise DecodeError(
            f"there is no {TOKENIZER} beside the model",
            where=str(model),
            mend=f"--tokenizer FILE or FOLDER with a {TOKENIZER}, or --prompt-ids 1,2,3",
        )
    return Tokenizer(Confinement(found.tokenizer))


def _require(name: str, what: str) -> None:
    if find_spec(name) is None:
        raise DecodeError(f"{what}, which is not installed", mend=EXTRA)


class Confinement:
    """A tokenizer.json, whose author is a stranger: another process reads it and converts. Raises
    DecodeError for an unreadable file, and for what it cannot convert."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        try:
            with open_file(file) as opened:
                size = os.fstat(opened.fileno()).st_size
            if size > TOKENIZER_BYTES.most:
                text = f"it has {size:,} bytes, and at most {TOKENIZER_BYTES.most:,} are read"
                raise OSError(errno.EFBIG, text)
        except OSError as error:
            raise self._unread(error.strerror or str(error)) from None
        more = size * TOKENIZER_RATIO
        self._process = Confined(STRANGERS, TOKENIZER_SECONDS, TOKENIZER_MEMORY, more)
        try:
            self._process.call(strangers.check, self._file)
        except Refused as error:
            raise self._unread(str(error)) from None

    def _unread(self, why: str) -> DecodeError:
        return DecodeError(f"the tokenizer cannot be read: {why}", where=self._file)

    def _ask(self, function: Callable[..., R], *task: Any) -> R:
        try:
            return self._process.call(function, self._file, *task)
        except Refused as error:
            raise DecodeError(
                f"the tokenizer cannot convert this: {error}",
                where=self._file,
                mend=f"another text, another {TOKENIZER}, or --prompt-ids 1,2,3",
            ) from None

    def encode(self, text: str, special: bool) -> list[int]:
        return self._ask(strangers.tokens, text, special)

    def token(self, text: str) -> int | None:
        return self._ask(strangers.token, text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._ask(strangers.text, tokens)


class Tokenizer:
    """Makes tokens of text, and text of tokens as they come."""

    def __init__(self, own: Any) -> None:
        """own: a Confinement, or what has its methods."""
        self._own = own

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. special: with the tokens that begin a text."""
        found: list[int] = self._own.encode(text, special)
        return found

    def token(self, text: str) -> int | None:
        """The token of a special text, such as an end."""
        found: int | None = self._own.token(text)
        return found

    def texts(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens, as soon as characters are whole: one may take several tokens."""
        known: list[int] = []  # begins with the last token before, so that spaces are right
        yielded = ""
        for token in tokens:
            known.append(token)
            whole = self._own.decode(known)
            if whole.endswith(UNFINISHED):
                continue
            if len(whole) > len(yielded):
                yield whole[len(yielded) :]
            known = known[-1:]
            yielded = self._own.decode(known)
        rest = self._own.decode(known)
        if len(rest) > len(yielded):
            yield rest[len(yielded) :]


def until(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Texts up to the first of `stops`, which is not yielded. A possible beginning of one is held
    back."""
    held = ""
    for text in texts:
        held += text
        places = [place for stop in stops if (place := held.find(stop)) >= 0]
        if places:
            yield held[: min(places)]
            return
        safe = len(held) - max((_begun(held, stop) for stop in stops), default=0)
        if safe:
            yield held[:safe]
            held = held[safe:]
    if held:
        yield held


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)


def chat_text(found: Beside, messages: Sequence[Mapping[str, str]]) -> str:
    """The text of messages by the tokenizer's chat template, up to the begin of the reply. Raises
    DecodeError for an unreadable template, or one that refuses the messages."""
    assert found.template is not None
    _require("jinja2", "a chat template needs the package jinja2")
    process = Confined(STRANGERS, TEMPLATE_SECONDS, TEMPLATE_MEMORY)
    try:
        return process.call(strangers.chat, found.template, messages, dict(found.texts))
    except Refused as error:
        raise DecodeError(
            f"the chat template does not take these messages: {error}", mend="--no-chat"
        ) from None
