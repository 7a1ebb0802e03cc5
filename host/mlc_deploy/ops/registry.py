"""The operators that graphs are made of: what each computes, as TE and as numpy.

An operator's TE definition is also its type inference: run on placeholders it says the outputs'
shapes and dtypes, or refuses the inputs. Strategies say how to compute an operator well on a given
machine (strategy.py).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arith import simplify_expr
from ..ir import Dim, Expr, dtype_of
from ..ir.nodes import dim
from ..ir.structural import content
from ..te import Tensor, placeholder

Attrs = Mapping[str, Any]
Array = NDArray[Any]

# What fusion may do with an operator: "elementwise" takes the elements of one index, broadcast, to
# the output's element there; "injective" is any expression per output element without reduction;
# "reduction" reads each input element for one output element only; "anchor" reads its input again
# and again, or is worth a schedule of its own (convolution, matrix product, pooling, softmax);
# "opaque" fuses with nothing.
Pattern = Literal["elementwise", "injective", "reduction", "anchor", "opaque"]

# Properties that passes ask for. Each holds for every attribute and dtype that the operator takes.
Trait = Literal[
    # Sums of products of its first two arguments. Float16 makes it faster.
    "products",
    # Its one argument's elements in other places, some more than once or not at all.
    "moves",
    # Elements that are neighbours in the result are not in the arguments, at some places: vectors
    # of them cannot be transposed on the way.
    "uneven",
    # Every element is one of its arguments' elements, or one of the attributes in `numbers`, chosen
    # by place or as the largest or smallest: f(x + c) = f(x) + c, for c added to these as well.
    "selects",
    # One operation over the attribute `axes` of its argument, with the attribute `keepdims`.
    "reduces",
    # Along the attribute `axis` of its first argument, and alike for all its other axes; the other
    # arguments say how.
    "along",
    # Channel c of the result depends on channel c of the argument alone (axis 1).
    "by_channel",
    # Computes in float16 where an argument is in float16 already: it moves numbers, or keeps their
    # range. Sums within it are of float32 (half.py). Other operators leave the range easily (sum,
    # exp, power), or lose their precision (log, sin, cumulative).
    "follows_half",
    # Gives finite numbers for finite ones, unless they leave the range of the dtype.
    "stays_finite",
    # Its output is the memory of its first argument; it writes a part of this memory.
    "updates",
    # f(f(x)) = x
    "own_inverse",
    # f(f(x)) = f(x)
    "idempotent",
    # f(x) >= 0
    "not_negative",
]

MAX_ELEMENTS = (1 << 31) - 1  # indices are int32


class Turned(Protocol):
    """How an operator of one argument moves before the argument's transpose, by the transpose's
    axes: f(transpose(x, axes), attrs) = transpose(f(x, attrs'), axes'). Gives attrs' and axes'."""

    def __call__(
        self, attrs: Attrs, axes: tuple[int, ...], /
    ) -> tuple[dict[str, Any], Sequence[int]]: ...


class OutputAxes(Protocol):
    """Which axis of a layer's weights counts its outputs, and which of its result does, by the
    attributes and the ranks of both."""

    def __call__(self, attrs: Attrs, weights: int, result: int, /) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """compute(inputs, attrs) gives the output tensors; evaluate does the same on numpy arrays.

    Both raise ValueError, naming the operator, for inputs they do not take. The rest is for passes:
    they ask these fields, and name no operator. numbers: the attributes that are numbers as the
    data are. turned: how it moves before a transpose. output_axes: of layers, data times weights.
    multiplies: how many multiply-accumulates a call takes, by the types of its arguments, the
    attributes and the type of its result; TypeError where a shape is symbolic.
    """

    name: str
    compute: Callable[[Sequence[Tensor], Attrs], Sequence[Tensor]]
    evaluate: Callable[[Sequence[Array], Attrs], Sequence[Array]]
    pattern: Pattern
    traits: tuple[Trait, ...] = ()
    numbers: tuple[str, ...] = ()
    turned: Turned | None = None
    output_axes: OutputAxes | None = None
    multiplies: Callable[[Sequence[TensorType], Attrs, TensorType], int] | None = None


def _one_dim(a: Dim, b: Dim) -> bool:
    return a is b or (not isinstance(a, Expr) and not isinstance(b, Expr) and a == b)


@dataclass(frozen=True, slots=True, eq=False)
class TensorType:
    """The type of a value, known before a run. Dynamic dimensions of equal types are one
    expression; `same_type` (graph/dims.py) also compares what they say."""

    shape: tuple[Dim, ...]
    dtype: str

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorType)
            and self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(map(_one_dim, self.shape, other.shape))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as numbers; TypeError unless it is constant."""
        return tuple(index(extent) for extent in self.shape)  # type: ignore[arg-type]

    @property
    def elements(self) -> int:
        """How many; TypeError unless the shape is constant."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        return self.elements * dtype_of(self.dtype).bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


OPERATORS: dict[str, Operator] = {}


def register(op: Operator) -> Operator:
    assert op.name not in OPERATORS, f"operator {op.name} is registered twice"
    OPERATORS[op.name] = op
    return op


def operator(name: str) -> Operator:
    """The operator of that name; KeyError naming the nearest ones."""
    found = OPERATORS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, OPERATORS, 3)
        raise KeyError(f"no operator '{name}'\n  try: {', '.join(near) or 'ops.OPERATORS'}")
    return found


def has(op: str, trait: Trait) -> bool:
    """Whether the operator of that name has a trait."""
    return trait in operator(op).traits


def frozen_attrs(attrs: Attrs) -> dict[str, Any]:
    """attrs as plain values that hash: lists and arrays become tuples, numpy's scalars Python's."""
    return {key: _frozen(value) for key, value in sorted(attrs.items())}


def _frozen(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def infer_types(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    """The types of the outputs. Raises ValueError, naming the operator, for what it refuses."""
    return _infer(op, tuple(inputs), tuple(frozen_attrs(attrs).items()))


@lru_cache(maxsize=4096)
def _infer(
    op: str, inputs: tuple[TensorType, ...], attrs: tuple[tuple[str, Any], ...]
) -> tuple[TensorType, ...]:
    outputs = compute(
        op, [placeholder(t.shape, t.dtype, f"p{n}") for n, t in enumerate(inputs)], dict(attrs)
    )
    types = tuple(TensorType(tuple(map(simplest, t.shape)), t.dtype) for t in outputs)
    for t in types:
        fixed = [extent for extent in t.shape if isinstance(extent, int)]
        if any(extent < 0 for extent in fixed):
            raise ValueError(f"{op}: the output would have the shape {list(t.shape)}")
        if math.prod(fixed) > MAX_ELEMENTS:
            raise ValueError(f"{op}: {t} has more elements than 32-bit indices reach")
    return types


def simplest(extent: Dim) -> Dim:
    """An extent in its simplest form. Equal extents are one expression: their types are equal."""
    found = dim(simplify_expr(extent, {})) if isinstance(extent, Expr) else extent
    return _extents.setdefault(content(found), found) if isinstance(found, Expr) else found


_extents: dict[bytes, Expr] = {}  # by content: they live on, as the symbols of dimensions do


def compute(op: str, inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The operator's tensor expression; ValueError, naming the operator, for inputs it refuses."""
    known = operator(op)
    try:
        return tuple(known.compute(inputs, attrs))
    except KeyError as error:
        if error.args[0] in attrs:
            raise
        what = f"{op}: the attribute '{error.args[0]}' is missing"
        raise ValueError(f"{what}\n  try: {error.args[0]}=…") from error
    except (TypeError, IndexError) as error:  # of mixed dtypes, or ranks that do not fit
        raise ValueError(f"{op}: {error}") from error


def evaluate(op: str, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    """The operator on arrays. Float overflow, 0/0 and the like give inf and nan, silently."""
    with np.errstate(all="ignore"):
        return tuple(np.asarray(a) for a in operator(op).evaluate(inputs, attrs))


def require(condition: bool, message: str) -> None:
    """Refuses an operator's input; the message begins with the operator's name."""
    if not condition:
        raise ValueError(message)
