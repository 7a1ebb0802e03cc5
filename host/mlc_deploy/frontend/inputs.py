"""What users say of a model's inputs: refused where it does not fit the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from ..errors import ShapeError


def refuse_unknown_inputs(
    given: Iterable[str], names: Collection[str], model: str, where: str
) -> None:
    """Raises ShapeError for the name of an input that the model has not."""
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 3, 0.5) or [*names][:5]
            mend = ", ".join(near) or "none"
            raise ShapeError(f"the {model} has no input '{name}'", where=where, mend=mend)


def shape_text(name: str, given: Sequence[int]) -> str:
    return f"the shape {','.join(map(str, given))} of '{name}'"


def unknown_shapes(inputs: Sequence[str], where: str, mend: str) -> ShapeError:
    """The error for inputs whose shapes are not known, each with what is known of it."""
    what = "the shape of an input is" if len(inputs) == 1 else "shapes of inputs are"
    return ShapeError(f"{what} not known: {', '.join(inputs)}", where=where, mend=mend)
