"""Scores a model from 0 to 1; the budget limits the loss of this score.

With labels, the score is the share of right answers. Without, it is the agreement with the float
model. Its measure depends on the kind of output:

    classes     rows that sum to 1: the share of rows with the same largest entry. If one class has
                most rows (a background, a blank), the mean of this share of its rows and of the
                others
    decisions   numbers from 0 to 1: the share that stays on its side of 0.5; the mean of this share
                above 0.5 and below
    whole       integers: the share of equal ones
    numbers     anything else: the cosine between both outputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .net import Array
from .run import Sample

KINDS = ("classes", "decisions", "whole", "numbers")
HALF = 0.5
FEW = 16  # labels: too few for a meaningful share
CLEAR = 0.2  # of the way from chance to all right; a model with fitting data is better


@dataclass(frozen=True)
class Judge:
    """The reference of outputs. kinds: by output; labels: one for each row of `labelled`."""

    right: tuple[Sample, ...]
    kinds: Mapping[str, str]
    labels: Array | None = None
    labelled: str = ""

    @property
    def measure(self) -> str:
        if self.labels is not None:
            return "accuracy"
        return "agreement with the float model"

    def doubts(self, score: float) -> tuple[str, ...]:
        """Warnings about labels with which the float model has this score."""
        if self.labels is None or self.labels.size < FEW:
            return ()
        classes = self.right[0][self.labelled].shape[-1]
        chance = 1 / classes
        if score >= chance + CLEAR * (1 - chance):
            return ()
        what = f"the float model itself is right in {score:.1%}, which chance makes {chance:.1%}"
        return (f"{what}: do labels and preprocessing fit the data?",)

    def score(self, outputs: Sequence[Sample]) -> float:
        """The score, from 0 to 1: the least of several outputs."""
        if self.labels is not None:
            found = np.concatenate([o[self.labelled].argmax(-1).reshape(-1) for o in outputs])
            return float(np.mean(found == self.labels[: found.size]))
        return min(
            _agreement(kind, _joined(self.right, name), _joined(outputs, name))
            for name, kind in self.kinds.items()
        )

    def error(self, outputs: Sequence[Sample]) -> float:
        """The mean over the outputs of their relative root mean square errors."""
        shares = []
        for name in self.kinds:
            right, found = _joined(self.right, name), _joined(outputs, name)
            size = float(np.linalg.norm(right.astype(np.float64)))
            miss = float(np.linalg.norm(right.astype(np.float64) - found))
            shares.append(miss / size if size else float(miss > 0))
        return float(np.mean(shares))

    def of_first(self, count: int) -> Judge:
        """The judge of only the first runs, without labels."""
        return Judge(self.right[:count], self.kinds)


def judge(right: Sequence[Sample], labels: Array | None = None, kind: str | None = None) -> Judge:
    """The judge by the float model's outputs. Raises ValueError if no output has a row per label
    and a class for each label."""
    kinds = {
        name: kind or kind_of([r[name] for r in right]) for name in right[0] if right[0][name].size
    }
    if labels is None:
        return Judge(tuple(right), kinds)
    flat = labels.reshape(-1)
    if flat.dtype.kind not in "iu":
        raise ValueError(f"they are {flat.dtype.name}, not integers")
    rows = {n: sum(r[n].size // r[n].shape[-1] for r in right if r[n].ndim) for n in right[0]}
    for name, count in rows.items():
        classes = right[0][name].shape[-1] if right[0][name].ndim else 0
        if count == flat.size and classes:
            least, most = int(flat.min()), int(flat.max())
            if least < 0 or most >= classes:
                whole = f"'{name}' has {classes} classes, counted from 0"
                raise ValueError(f"they are {least} to {most}, and {whole}")
            return Judge(tuple(right), kinds, flat, name)
    given = ", ".join(f"'{name}' has {count} rows" for name, count in rows.items())
    raise ValueError(f"there are {flat.size}, and {given}")


def kind_of(arrays: Sequence[Array]) -> str:
    first = arrays[0]
    if first.dtype.kind != "f":
        return "whole"
    least, most = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
    if least < 0 or most > 1 + 1e-4:
        return "numbers"
    wide = first.ndim and first.shape[-1] > 1
    if wide and all(np.allclose(a.sum(-1), 1, atol=1e-3) for a in arrays):
        return "classes"
    return "decisions" if most > HALF else "numbers"


def _joined(outputs: Sequence[Sample], name: str) -> Array:
    """The rows of an output from all runs."""
    arrays = [o[name] for o in outputs]
    width = arrays[0].shape[-1] if arrays[0].ndim else 1
    if any(a.shape[-1:] != arrays[0].shape[-1:] for a in arrays):
        width = 1
    return np.concatenate([a.reshape(-1, width) for a in arrays])


def _agreement(kind: str, right: Array, found: Array) -> float:
    if not np.all(np.isfinite(found)):
        return 0.0
    match kind:
        case "classes":
            classes = right.argmax(-1)
            same = classes == found.argmax(-1)
            most = classes == np.bincount(classes).argmax()
            return _of_sides(same, most) if most.mean() > HALF else float(same.mean())
        case "whole":
            return float(np.mean(right == found))
        case "decisions":
            over, above = right > HALF, found > HALF
            return _of_sides(over == above, over)
    a, b = right.reshape(-1).astype(np.float64), found.reshape(-1).astype(np.float64)
    sizes = float(np.linalg.norm(a) * np.linalg.norm(b))
    if np.array_equal(a, b) or not sizes:  # the cosine of equal ones could round to less than 1
        return float(np.array_equal(a, b))
    return min(1.0, float(a @ b / sizes))


def _of_sides(same: Array, side: Array) -> float:
    """The mean of `same` on both sides: few objects count as much as a large background."""
    return float(np.mean([np.mean(same[of]) for of in (side, ~side) if of.any()]))
