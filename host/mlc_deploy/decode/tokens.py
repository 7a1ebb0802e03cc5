"""Converts text to tokens and back by Hugging Face's `tokenizers`, and chats to text by the
tokenizer's template. The extra `text` has both packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import DecodeError
from .files import TOKENIZER, Beside

EXTRA = "pip install 'mlc-deploy[text]'"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the decoding of a character's first bytes


def load_tokenizer(found: Beside, model: Path) -> Tokenizer:
    """The tokenizer of a model. Raises DecodeError if the extra or the file is missing."""
    tokenizers = _imported("tokenizers", "text needs the package tokenizers")
    if found.tokenizer is None:
        raise DecodeError(
            f"there is no {TOKENIZER} beside the model",
            where=str(model),
            mend=f"--tokenizer FILE or FOLDER with a {TOKENIZER}, or --prompt-ids 1,2,3",
        )
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(found.tokenizer)))
    except Exception as error:  # the package raises bare Exceptions
        raise DecodeError(
            f"the tokenizer cannot be read: {error}", where=str(found.tokenizer)
        ) from None


def _imported(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise DecodeError(f"{what}, which is not installed", mend=EXTRA) from None


class Tokenizer:
    """Makes tokens of text, and text of tokens as they come."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. special: with the tokens that begin a text."""
        found: list[int] = self._own.encode(text, add_special_tokens=special).ids
        return found

    def token(self, text: str) -> int | None:
        """The token of a special text, such as an end."""
        found: int | None = self._own.token_to_id(text)
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
    jinja2 = _imported("jinja2", "a chat template needs the package jinja2")
    sandbox = _imported("jinja2.sandbox", "a chat template needs the package jinja2")

    def refuse(message: str) -> str:
        raise jinja2.TemplateError(message)

    world = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    world.globals["raise_exception"] = refuse
    try:
        text: str = world.from_string(found.template).render(
            messages=messages, add_generation_prompt=True, **found.texts
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise DecodeError(
            f"the chat template does not take these messages: {error}", mend="--no-chat"
        ) from None
    return text
