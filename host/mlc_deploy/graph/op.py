"""Operators as functions that make calls: `op.conv2d(x, w, strides=(1, 1), …)`.

There is one for every name in ops.OPERATORS. `BlockBuilder.emit` puts the call into a function.
Arguments may be calls themselves, which are emitted first. An unknown operator raises
AttributeError with the nearest names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops import OPERATORS, frozen_attrs, operator
from .nodes import Call


def __getattr__(name: str) -> Callable[..., Call]:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        known = operator(name).name
    except KeyError as error:
        raise AttributeError(error.args[0]) from None

    def call(*args: Any, **attrs: Any) -> Call:
        return Call(known, args, frozen_attrs(attrs))

    call.__name__ = call.__qualname__ = known
    return call


def __dir__() -> list[str]:
    return sorted(OPERATORS)
