"""What awkward calls are made of: extents, shapes, dtypes, and a call as a function of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ops import TensorType, frozen_attrs
from mlc_targets import Target
from tests.ops.planned import plan_for

SMALL = (1, 1, 2, 3, 4, 7, 8, 16, 31)
LARGE = (64, 97, 100, 127, 500, 1000, 1021, 1999, 2048, 2049, 4000, 4099, 16000, 65537)
CHANNELS = (1, 1, 2, 3, 8, 13, 16, 31, 64, 97, 128, 256, 1021, 2048, 2049)
WINDOWS = (1, 1, 1, 2, 3, 3, 5, 7, 9, 31, 64, 255)
MOST_ELEMENTS = 1 << 24  # of a tensor
FLOATS = ("float32", "float32", "float16")
BYTES = ("int8", "uint8")
NUMBERS = (*FLOATS, "int8", "uint8", "int32", "int64")
DTYPES = {
    "float": FLOATS,
    "int": ("int8", "int16", "int32", "int64"),
    "uint": ("uint8", "uint16", "uint32"),
    "bool": ("bool",),
}
ATTRS: dict[str, dict[str, Any]] = {
    "clip": {"min": 0, "max": 2},
    "elu": {"alpha": 0.7},
    "gelu": {"approximate": "tanh"},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "isinf": {"positive": True, "negative": False},
    "leaky_relu": {"alpha": 0.1},
    "mod": {"truncated": False},
    "selu": {"alpha": 1.67, "gamma": 1.05},
    "shift": {"left": True},
    "shrink": {"lambd": 0.5, "bias": 0.2},
    "thresholded_relu": {"alpha": 0.5},
}


@dataclass(frozen=True, slots=True)
class AwkwardCall:
    """An operator on data, and constant weights where `weights` says so."""

    op: str
    types: tuple[TensorType, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    weights: bool = False

    def __str__(self) -> str:
        shown = [str(t) for t in self.types]
        return f"{self.op}({', '.join(shown[:4] + ['...'] * (len(shown) > 4))}) {self.attrs}"

    def function(self, target: Target, follows: bool) -> Function:
        """As the target wants it; an addition along channels and a relu, where wanted."""
        types, attrs = list(self.types), self.attrs
        plan = plan_for(self.op, types, attrs, target) if self.weights else None
        if plan is not None:
            types, attrs = list(plan.arguments), plan.attrs
        builder = BlockBuilder("call")
        params = [builder.param(f"p{n}", t.shape, t.dtype) for n, t in enumerate(types)]
        emitted = builder.emit(Call(self.op, tuple(params), frozen_attrs(attrs), plan))
        results = emitted if isinstance(emitted, tuple) else (emitted,)
        first = results[0]
        if follows and len(results) == 1 and first.type.dtype in (*FLOATS, "int32"):
            sizes = first.type.sizes
            blocks = (len(sizes) == 5 and "out_layout" in attrs) or "layout" in attrs
            bias = [n if d == 1 or (blocks and d == 4) else 1 for d, n in enumerate(sizes)]
            given = builder.param("bias", bias, first.type.dtype)
            results = (builder.emit("relu", builder.emit("add", first, given)),)
        return builder.finish(list(results))


def shape(rng: Random, low: int = 0, high: int = 5) -> tuple[int, ...]:
    """Small extents with one or two large ones among them, seldom none or one of nothing."""
    sizes = [rng.choice(SMALL) for _ in range(rng.randint(low, high))]
    for n in rng.sample(range(len(sizes)), min(len(sizes), rng.choice((0, 1, 1, 2)))):
        sizes[n] = rng.choice(LARGE)
    if sizes and rng.random() < 0.03:
        sizes[rng.randrange(len(sizes))] = 0
    return tuple(sizes) if prod(sizes) <= MOST_ELEMENTS else shape(rng, low, high)


def narrowed(rng: Random, sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to another."""
    small = [1 if rng.random() < 0.4 else n for n in sizes]
    return tuple(small[rng.randint(0, len(small)) if rng.random() < 0.4 else 0 :])


def call(op: str, *types: tuple[Sequence[int], str], **attrs: Any) -> AwkwardCall:
    return AwkwardCall(op, tuple(TensorType(tuple(s), d) for s, d in types), attrs)


def dtype(rng: Random) -> str:
    return rng.choice(NUMBERS)
