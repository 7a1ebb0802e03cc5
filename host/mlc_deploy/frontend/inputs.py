"""Errors for shapes and names that users give of a model's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from ..errors import ShapeError


def refuse_unknown_inputs(
    given: Iterable[str], names: Collection[str], model: str, where: str
) -> None:
    """Raises ShapeError if the model has no input of a given name."""
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 3, 0.5) or [*names][:5]
            mend = ", ".join(near) or "none"
            raise ShapeError(f"the {model} has no input '{name}'", where=where, mend=mend)


def shape_text(name: str, given: Sequence[int]) -> str:
    return f"the shape {','.join(map(str, given))} of '{name}'"


def unknown_shapes(inputs: Sequence[str], where: str, mend: str) -> ShapeError:
    """The error for inputs without known shapes. Each text names an input and its known extents."""
    what = "the shape of an input is" if len(inputs) == 1 else "shapes of inputs are"
    return ShapeError(f"{what} not known: {', '.join(inputs)}", where=where, mend=mend)
