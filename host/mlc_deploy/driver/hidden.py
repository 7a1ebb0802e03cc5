"""Features of a board that a target's code does not use, though the model would gain by them."""

from __future__ import annotations

from collections.abc import Iterator

from mlc_targets import Target

from ..graph.nodes import Constant, Function, Value, bodies

# feature -> the dtypes that it multiplies, and how code does without it.
GAINS = {
    "fullfp16": (frozenset({"float16"}), "float16 is stored, and computed in float32"),
    "dotprod": (frozenset({"int8", "uint8"}), "products of int8 take more instructions"),
    "i8mm": (frozenset({"int8", "uint8"}), "products of int8 take more instructions"),
}


def hidden_features(
    target: Target, has: frozenset[str], model: Function, precision: str
) -> dict[str, str]:
    """Features of the board that the model would use and the target leaves out, each with the
    cost."""
    used = {precision, *(v.type.dtype for v in _multiplied(model))}
    return {
        feature: cost
        for feature, (dtypes, cost) in GAINS.items()
        if feature in has and not target.has(feature) and used & dtypes
    }


def hidden_text(target: Target, url: str, found: dict[str, str]) -> str:
    """A note that names the features, their cost and the way out."""
    costs = ", and ".join(dict.fromkeys(found.values()))
    return (
        f"the board {url} has {', '.join(found)}, which code for {target.short_name} does not "
        f"use: {costs} (without --target, code is for the board)"
    )


def _multiplied(function: Function) -> Iterator[Value]:
    """The constant matrices."""
    for binding in function.bindings:
        for arg in binding.call.args:
            if isinstance(arg, Constant) and arg.value.ndim > 1:
                yield arg
        for body in bodies(binding.call):
            yield from _multiplied(body)
