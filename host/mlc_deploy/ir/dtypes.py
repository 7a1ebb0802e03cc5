"""Data types by name: "float32", "int8", "bool", and vectors of them, "float32x4"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

SCALARS = (
    "float16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool",
)


@dataclass(frozen=True, slots=True)
class DType:
    """What a dtype's name says. `bits` is the width of one lane in memory (bool takes 8)."""

    name: str
    kind: Literal["float", "int", "uint", "bool"]
    bits: int
    lanes: int

    @property
    def scalar(self) -> str:
        return self.name.partition("x")[0]

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


@cache
def dtype_of(name: str) -> DType:
    """Reads a dtype's name; raises ValueError naming the known ones."""
    scalar, _, lanes = name.partition("x")
    if scalar not in SCALARS or not re.fullmatch(r"[0-9]*", lanes):
        raise ValueError(f"unknown dtype '{name}'\n  try: one of {', '.join(SCALARS)}")
    kind = scalar.rstrip("0123456789")
    bits = 8 if kind == "bool" else int(scalar[len(kind) :])
    return DType(name, kind, bits, int(lanes or 1))  # type: ignore[arg-type]


@cache
def with_lanes(name: str, lanes: int) -> str:
    """The vector of `lanes` elements of a dtype: ("float32", 4) -> "float32x4"."""
    scalar = dtype_of(name).scalar
    return scalar if lanes == 1 else f"{scalar}x{lanes}"


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """numpy's scalar type of a dtype (lanes do not matter)."""
    return np.dtype(dtype_of(name).scalar)


@cache
def value_range(name: str) -> tuple[float, float]:
    """Smallest and largest finite value; integers exactly, as ints."""
    kind = dtype_of(name)
    if kind.kind == "float":
        info = np.finfo(dtype_of(name).scalar)
        return float(info.min), float(info.max)
    if kind.kind == "bool":
        return 0, 1
    if kind.kind == "int":
        return -(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1
    return 0, (1 << kind.bits) - 1
