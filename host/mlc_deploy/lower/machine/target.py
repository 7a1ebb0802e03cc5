"""The target of a function of flat loops."""

from __future__ import annotations

from functools import cache

from mlc_targets import Target

from ...ir import PrimFunc, with_fields

TARGET = "target"  # an attribute of functions: the target's string


def bind_target(func: PrimFunc, target: Target) -> PrimFunc:
    """The function with its target among the attributes."""
    return with_fields(func, attrs={**func.attrs, TARGET: str(target)})


def target_of(func: PrimFunc) -> Target | None:
    """The function's target; None where none is bound."""
    text = func.attrs.get(TARGET)
    return None if text is None else _parsed(text)


_parsed = cache(Target)
