"""What runs in a confined process: templates and tokenizers that came with a model. Their authors
are strangers, and a template is a program; a tokenizer has regular expressions, which may try for
ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from ..driver.confined import Refused
from ..files.limits import TEXT, TEXT_TOKENS

R = TypeVar("R")

# One thread: others would take address space, of which this process has little.
os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def chat(template: str, messages: Sequence[Mapping[str, str]], texts: Mapping[str, str]) -> str:
    """The text that a chat template makes of messages. Raises Refused."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise jinja2.TemplateError(message)

    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    world.globals["raise_exception"] = refuse
    named = {**texts, "messages": messages, "add_generation_prompt": True}
    text: str = _asked(lambda: world.from_string(template).render(named))
    return _short(text)


def check(file: str) -> None:
    """Raises Refused for what is not a tokenizer.json."""
    _tokenizer(file)


def tokens(file: str, text: str, special: bool) -> list[int]:
    """The tokens of a text. Raises Refused."""
    own = _tokenizer(file)
    found: list[int] = _asked(lambda: own.encode(text, add_special_tokens=special).ids)
    if len(found) > TEXT_TOKENS.most:
        raise Refused(f"it makes {len(found):,} tokens, and at most {TEXT_TOKENS.most:,} may be")
    return found


def token(file: str, text: str) -> int | None:
    """The token of a special text. Raises Refused."""
    own = _tokenizer(file)
    found: int | None = _asked(lambda: own.token_to_id(text))
    return found


def text(file: str, tokens: Sequence[int]) -> str:
    """The text of tokens. Raises Refused."""
    own = _tokenizer(file)
    return _short(_asked(lambda: own.decode(list(tokens))))


def _short(text: str) -> str:
    if len(text) > TEXT.most:
        raise Refused(f"it writes {len(text):,} characters, and at most {TEXT.most:,} may be")
    return text


@cache
def _tokenizer(file: str) -> Any:
    import tokenizers

    return _asked(lambda: tokenizers.Tokenizer.from_file(file))


def _asked(work: Callable[[], R]) -> R:
    """The result of a stranger's work. Raises Refused for whatever it raises: a template's
    expressions raise anything, and Rust's panics are not Exceptions."""
    try:
        return work()
    except MemoryError:
        raise
    except BaseException as error:
        raise Refused(" ".join(str(error).split())[:300] or type(error).__name__) from None
