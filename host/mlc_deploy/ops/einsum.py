"""Sums of products by Einstein's notation: "bij,bjk->bik"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import te
from ..ir import Dim, Expr, const
from ..te import Tensor
from .elementwise import same_extent
from .half import rounded, sums
from .reference import in_float64
from .registry import Array, Attrs, Operator, register, require


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """attrs: equation, with an arrow and one letter per dimension (no ellipsis)."""
    terms, result = attrs["equation"].split("->")
    labels = terms.split(",")
    require(len(labels) == len(inputs), f"einsum: {len(inputs)} inputs for '{attrs['equation']}'")
    extents: dict[str, Dim] = {}
    for label, t in zip(labels, inputs, strict=True):
        require(len(label) == t.ndim, f"einsum: '{label}' for {t.ndim} dimensions")
        require(t.dtype == inputs[0].dtype, "einsum: inputs of different dtypes")
        for letter, extent in zip(label, t.shape, strict=True):
            known = extents.setdefault(letter, extent)
            fits = same_extent(known, extent)
            require(fits, f"einsum: '{letter}' is {known} and {extent} in '{attrs['equation']}'")
    once = len(set(result)) == len(result) and set(result) <= set(extents)
    require(once, f"einsum: the result of '{attrs['equation']}'")
    over = {letter: te.reduce_axis((0, extents[letter]), f"k_{letter.lower()}{n}")
            for n, letter in enumerate(extents) if letter not in result}  # fmt: skip
    kept = sums(inputs[0].dtype)

    def element(*i: Expr) -> Expr:
        at = dict(zip(result, i, strict=True)) | {k: v.var for k, v in over.items()}
        total: Expr = const(1, kept)
        for number, (label, t) in enumerate(zip(labels, inputs, strict=True)):
            factor = t[tuple(at[letter] for letter in label)].astype(kept)
            total = total * factor if number else factor
        return te.sum(total, list(over.values())) if over else total

    product = te.compute([extents[letter] for letter in result], element, name="einsum")
    return [rounded(product, inputs[0].dtype)]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    return [np.asarray(np.einsum(attrs["equation"], *inputs))]


register(Operator("einsum", _compute, in_float64(_evaluate), "anchor", ("products",)))
