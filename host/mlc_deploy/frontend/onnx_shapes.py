"""The shapes of a model's inputs: from the model, --shape and --bind."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from onnx import ValueInfoProto

from ..errors import ImporterError, ModelWarning, ShapeError
from ..ir import Dim, is_const
from .refusals import (
    fixed_and_open,
    open_text,
    refuse_unknown_inputs,
    shape_text,
    unknown_shapes,
)


def bound_shapes(
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, Dim],
    where: str,
    bounds: Mapping[str, str],
) -> list[tuple[Dim, ...]]:
    """The shapes of all inputs; dynamic dimensions are symbols. bounds: the text of each dynamic
    dimension, such as "<=512". If nothing but a batch is unknown, it is 1, with a ModelWarning.
    Raises ShapeError that names unknown dimensions and the options for them."""
    names = [i.name for i in inputs]
    refuse_unknown_inputs(shapes, names, "model", where)
    declared = [declared_shape(i, where) for i in inputs]
    named = _named_dims(declared, shapes, dims, names, where, bounds)
    left = [own for name, own in zip(names, declared, strict=True) if name not in shapes]
    batch = _lone_batch(left, named)
    if batch is not None:
        name, first = next((i, d) for i, d in zip(names, declared, strict=True) if d and batch in d)
        sizes = ",".join(str(4 if d == batch else d) for d in first)
        way = f"--shape {name}={sizes}" if batch == "?" else f"--bind {batch}=4"
        what = f"the batch of {_text(first)} is 1; for another: {way}"
        warnings.warn(f"'{name}': {what}", ModelWarning, stacklevel=2)
        named[batch] = 1
    result: list[tuple[Dim, ...]] = []
    unbound: list[str] = []
    hints: list[str] = []
    examples: dict[str, int] = {}
    for info, own in zip(inputs, declared, strict=True):
        given = shapes.get(info.name)
        if given is not None:
            result.append(_agreed(info.name, own, given, where))
            continue
        bound = None if own is None else [named.get(d, d) if isinstance(d, str) else d for d in own]
        if bound is not None and not any(isinstance(d, str) for d in bound):
            result.append(tuple(d for d in bound if not isinstance(d, str)))
            continue
        unbound.append(f"'{info.name}' {_text(own)}")
        hints.append(f"--shape {info.name}={_examples(bound, examples)}")
    if unbound:
        raise unknown_shapes(unbound, where, " ".join(hints))
    return result


def _lone_batch(declared: Sequence[list[int | str] | None], known: Mapping[str, Dim]) -> str | None:
    """The name of the only unknown dimension, "?" if it has none, where that is the first of all
    that have it, of several. None in other cases."""
    unknown = {
        (d, axis, len(own))
        for own in declared
        if own is not None
        for axis, d in enumerate(own)
        if isinstance(d, str) and d not in known
    }
    alone = len({d for d, *_ in unknown}) == 1 and None not in declared
    if not alone or any(axis or rank == 1 for _, axis, rank in unknown):
        return None
    return next(iter(unknown))[0]


def open_inputs(
    inputs: Sequence[ValueInfoProto], bound: Sequence[tuple[Dim, ...]], where: str
) -> list[str]:
    """The inputs of which the model has dynamic sizes, with those that they have here."""
    own = [declared_shape(i, where) for i in inputs]
    return [
        open_text(info.name, _text(declared), here)
        for info, declared, here in zip(inputs, own, bound, strict=True)
        if declared is None or any(isinstance(d, str) for d in declared)
    ]


def declared_shape(info: ValueInfoProto, where: str) -> list[int | str] | None:
    """The shape in the model. Unknown dimensions are names, or "?" without a name."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "nothing").removesuffix("_type")
        raise ImporterError(
            f"input '{info.name}' is a {what}, not a tensor, which is not supported", where=where
        )
    if not info.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
        for d in info.type.tensor_type.shape.dim
    ]


def refuse_unknown_dims(
    dims: Mapping[str, Dim], declared: Sequence[list[int | str] | None], where: str
) -> None:
    """Raises ShapeError for a name that no dimension of the inputs has, and for a negative size."""
    there = {d for own in declared for d in own or () if isinstance(d, str) and d != "?"}
    for name, value in dims.items():
        if name not in there:
            known = ", ".join(sorted(there)) or "none: --shape gives whole shapes"
            raise ShapeError(
                f"--bind names '{name}', which is not a dimension of the model's inputs",
                where=where,
                mend=known,
            )
        if isinstance(value, int):
            _positive([value], f"--bind {name}={value}", where)


def _named_dims(
    declared: Sequence[list[int | str] | None],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, Dim],
    names: Sequence[str],
    where: str,
    bounds: Mapping[str, str],
) -> dict[str, Dim]:
    """Values of the named dimensions, from --bind and from given shapes."""
    refuse_unknown_dims(dims, declared, where)
    result = dict(dims)
    for name, own in zip(names, declared, strict=True):
        for d, value in zip(own or (), shapes.get(name, ()), strict=False):
            if (
                isinstance(d, str)
                and d != "?"
                and not is_const(result.setdefault(d, int(value)), int(value))
            ):
                if d in bounds:
                    raise fixed_and_open(d, bounds[d], name, value, where)
                what = f"dimension '{d}' is {result[d]}, and {value} by the shape of '{name}'"
                if d in dims:
                    raise ShapeError(what, where=where, mend=f"--bind {d}={value}, or none")
                what += ": the model calls two dimensions by one name"
                warnings.warn(what, ModelWarning, stacklevel=2)
    return result


def _agreed(
    name: str, own: list[int | str] | None, given: Sequence[int], where: str
) -> tuple[int, ...]:
    text = shape_text(name, given)
    _positive(given, text, where)
    fits = own is None or (
        len(own) == len(given)
        and all(isinstance(a, str) or a == b for a, b in zip(own, given, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{text} contradicts the model, where it is {_text(own)}",
            where=where,
            mend="a shape that fits, or export the model with that dimension dynamic",
        )
    return tuple(int(d) for d in given)


def _positive(given: Sequence[int], text: str, where: str) -> None:
    if any(d < 0 for d in given):
        raise ShapeError(f"{text} has a negative dimension", where=where)


def _text(own: list[int | str] | None) -> str:
    return "of unknown rank" if own is None else f"[{', '.join(map(str, own))}]"


def _examples(bound: Sequence[Dim | str] | None, known: dict[str, int]) -> str:
    """A shape to try. known: the numbers tried for named dimensions; this function adds to it."""
    if bound is None:
        return "1,3,224,224"
    tried: list[int] = []
    for n, d in enumerate(bound):
        name = str(d)
        number = d if isinstance(d, int) else _example(name, len(bound), n)
        tried.append(
            number if isinstance(d, int) or name == "?" else known.setdefault(name, number)
        )
    return ",".join(map(str, tried))


def _example(name: str, rank: int, position: int) -> int:
    """A number to try for a dimension: batches are 1, sides of images 224, sound a second long."""
    if position == 0 or "batch" in name.lower():
        return 1
    if "sample" in name.lower():
        return 16000
    return 224 if rank == 4 else 128
