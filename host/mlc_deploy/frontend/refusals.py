"""Errors that all front ends share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from ..errors import ImporterError, ShapeError
from ..ir import UnknownValue, free_vars
from ..ops.elementwise import UnlikeExtents

# The errors that converters raise for damaged or unusual nodes.
MISTAKES = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError,
)  # fmt: skip


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has none."""
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextmanager
def reading(path: Path, mend: str = "") -> Iterator[None]:
    """Turns the errors of opening a file into ImporterError. mend: the advice for a missing
    file."""
    try:
        yield
    except FileNotFoundError:
        raise ImporterError("there is no such file", where=str(path), mend=mend) from None
    except OSError as error:
        raise ImporterError(f"cannot be read: {error.strerror}", where=str(path)) from error


@contextmanager
def mistakes_at(place: str, bound: Collection[str] = ()) -> Iterator[None]:
    """Turns the errors of converters into an ImporterError that names the place. bound: the dynamic
    dimensions of inputs, by name."""
    try:
        yield
    except UnknownValue as error:
        names = sorted(v.name for v in free_vars(error.of)) if error.of is not None else []
        what = f"the node needs to know '{error.of}', which is known only at run time"
        mend = f"{names[0]}=16: one of its sizes" if names else ""
        raise ImporterError(what, where=place, mend=mend) from error
    except MISTAKES as error:
        text = f"missing {error}" if isinstance(error, KeyError) else str(error)
        mend = ""
        if isinstance(error, UnlikeExtents) and (names := [n for n in error.symbols if n in bound]):
            mend = f"--bind with a number for {', '.join(names)}"
            if error.same is not None and names == error.symbols:
                mend += f"; or --bind {error.same}, if that is so in every run"
        raise ImporterError(text or type(error).__name__, where=place, mend=mend) from error


OTHER_SIZES = "--shape, with other sizes for"


@contextmanager
def open_sizes(inputs: Collection[str]) -> Iterator[None]:
    """Says of a mistake at a node that inputs may have other sizes. Each text names an input."""
    try:
        yield
    except ImporterError as error:
        if not inputs or error.mend or not isinstance(error.__cause__, ValueError):
            raise
        mend = f"{OTHER_SIZES} {', '.join(inputs)}"
        raise ImporterError(error.what, where=error.where, mend=mend) from error.__cause__


def open_text(name: str, own: str, here: Sequence[object]) -> str:
    """An input, the shape that its model has, and the one that it has here."""
    return f"'{name}' {own}, which is {','.join(map(str, here))} here"


def missing_operators(
    missing: Mapping[str, Collection[str]],
    reasons: Mapping[str, str],
    where: str,
    call: str,
) -> ImporterError:
    """The error for operators without converters. missing: the places of their nodes; call: the
    arguments and the result of a converter."""
    lines = []
    for op, places in sorted(missing.items()):
        first = next(iter(places))
        often = "once, at" if len(places) == 1 else f"{len(places)} times, first at"
        reason = f": {reasons[op]}" if op in reasons else ""
        lines.append(f"{op} ({often} {first}){reason}")
    count = "an operator is" if len(missing) == 1 else f"{len(missing)} operators are"
    return ImporterError(
        f"{count} not supported:\n    " + "\n    ".join(lines),
        where=where,
        mend=f'supply a converter: mlc.compile(..., converters={{"{min(missing)}": convert}}), '
        f"where convert\n{call}",
    )


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


def fixed_and_open(dimension: str, bound: str, name: str, size: int, where: str) -> ShapeError:
    return ShapeError(
        f"--bind '{dimension}{bound}' makes a dimension dynamic, and the shape of '{name}' fixes "
        f"it to {size}",
        where=where,
        mend=f"--bind {dimension}={size}, or --bind alone for every dynamic dimension of '{name}'",
    )


def unknown_shapes(inputs: Sequence[str], where: str, mend: str) -> ShapeError:
    """The error for inputs without known shapes. Each text names an input and its known extents."""
    what = "the shape of an input is" if len(inputs) == 1 else "shapes of inputs are"
    return ShapeError(f"{what} not known: {', '.join(inputs)}", where=where, mend=mend)
