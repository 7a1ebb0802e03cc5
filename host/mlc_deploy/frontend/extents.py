"""Extents that a model computes: the shapes of tensors as values, and tensors whose shapes are
known at run time.

A converter sees the dimension n of a tensor as an expression. ONNX's Shape turns it into a
tensor of integers. This module follows such tensors as they are added, cut and joined, so that a
Reshape by one of them gets the expression back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arith import Bounds, expr_bounds, simplify_expr
from ..graph.dims import bound_dims, symbol
from ..graph.extents import LARGEST
from ..graph.nodes import Constant, Value
from ..ir import Binary, Const, Dim, Expr, Var, binary, compare, const, free_vars, is_const
from ..ir.nodes import dim
from ..ops import Attrs, evaluate
from ..ops.elementwise import same_extent

if TYPE_CHECKING:
    from .node import Node

Dims = NDArray[Any]  # numbers and expressions, as objects

MOST_FOLLOWED = 64  # integers of one tensor: a shape has few

# Attributes of Extents that scopes restore.
KEPT = ("most", "values", "places", "claims", "_dims", "_named")

# Operators on integers that numpy also computes on arrays of objects.
MOVING = frozenset({"broadcast_to", "concatenate", "gather", "reshape", "slice", "transpose"})
COUNTING: Mapping[str, str] = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "//", "maximum": "max",
    "minimum": "min", "mod": "%",
}  # fmt: skip
COMPARING: Mapping[str, str] = {
    "equal": "==", "less": "<", "greater": ">", "less_equal": "<=", "greater_equal": ">=",
}  # fmt: skip
REDUCING = {"sum": "+", "prod": "*", "max": "max", "min": "min"}
OF_BINARY = {"+": "add", "-": "subtract", "*": "multiply", "//": "divide", "max": "maximum",
             "min": "minimum", "tdiv": "divide"}  # fmt: skip


class Claim(NamedTuple):
    """A comparison of two dynamic extents."""

    comparison: str
    a: Dim
    b: Dim


class Extents:
    """The extents known while a model is read. `most` has the bound of each by its name. taken: the
    names of inputs and outputs, which extents must not have."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = frozenset(taken)
        self.most: dict[str, int] = {}
        self.values: dict[str, Value] = {}  # the value of each extent, int64[]
        self.params: set[str] = set()  # the extents that are parameters
        self.places: dict[Value, Value] = {}  # where a tensor is not zero, int64[found, rank]
        self.claims: dict[Value, tuple[Claim, ...]] = {}  # of truths: true if all of them are
        self._dims: dict[Value, Dims] = {}  # the integers of followed tensors
        self._named: dict[str, Dim] = {}  # the extent of its own of each expression
        self._meaning: dict[Var, Dim] = {}  # the expression of each such extent

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Forgets everything that is added within."""
        before = self._kept()
        try:
            yield
        finally:
            self._known(before)

    @contextmanager
    def tried(self) -> Iterator[Callable[[], bool]]:
        """Forgets everything that is added within, if that ends in an error. Gives a function that
        says whether an extent was added."""
        before, count = self._kept(), len(self.most)
        try:
            yield lambda: len(self.most) > count
            before = self._kept()
        finally:
            self._known(before)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Forgets everything that is added within a body, except the bounds of extents."""
        before = self._kept()
        try:
            yield
        finally:
            self._known({**before, "most": self.most})

    def outside(self, extent: Dim) -> Dim | None:
        """An extent of a body by the extents known here; None if the body decides it."""
        while isinstance(extent, Expr):
            inner = {v for v in free_vars(extent) if v.name not in self.values}
            if not inner:
                break
            if not inner <= self._meaning.keys():
                return None
            extent = bound_dims([extent], {v: self._meaning[v] for v in inner})[0]
        return extent

    def _kept(self) -> dict[str, dict[Any, Any]]:
        return {name: dict(vars(self)[name]) for name in KEPT}

    def _known(self, before: Mapping[str, dict[Any, Any]]) -> None:
        vars(self).update(before)

    def add(self, n: Node, name: str, count: Value, most: int) -> Dim:
        """Adds an extent whose value is `count`, int64[]."""
        if isinstance(count, Constant):
            return int(count.value)
        fresh = self.fresh(name)
        self.most[fresh] = most
        self._say(fresh, n.emit("extent", count, extent=symbol(fresh)))
        return symbol(fresh)

    def fresh(self, name: str) -> str:
        """A name that no extent, input or output has."""
        fresh, number = name, 1
        while fresh in self.most or fresh in self._taken:
            fresh, number = f"{name}_{number}", number + 1
        return fresh

    def given(self, name: str, value: Value, most: int) -> None:
        """Adds an extent whose value is a parameter of its name."""
        self.most[name] = most
        self._say(name, value)
        self.params.add(name)

    def _say(self, name: str, value: Value) -> None:
        self.values[name] = value
        self._dims[value] = np.array(symbol(name), object)

    def largest(self, extent: Dim) -> int:
        """The largest value of an extent. A quotient by an extent of 0 counts for nothing."""
        if isinstance(extent, int):
            return extent
        for least in (0, 1):
            high = expr_bounds(extent, self._ranges(extent, least))[1]
            if high is not None:
                return int(high)
        return LARGEST

    def bounds(self, extent: Expr) -> tuple[int | None, int | None]:
        """The least and largest value of an expression; None where that is unknown."""
        low, high = expr_bounds(extent, self._ranges(extent))
        return None if low is None else int(low), None if high is None else int(high)

    def _may_be_negative(self, extent: Expr) -> bool:
        low, _ = self.bounds(extent)
        return low is None or low < 0

    def _ranges(self, extent: Expr, least: int = 0) -> dict[Var, Bounds]:
        return {v: (least, self.most[v.name]) for v in free_vars(extent)}

    def bounded(self, extent: Dim) -> Dim:
        """An extent simplified by the bounds of its variables."""
        if isinstance(extent, int):
            return extent
        return dim(simplify_expr(extent, self._ranges(extent)))

    def own(self, n: Node, extent: Dim) -> Dim:
        """An extent that kernels can compute with. An expression beyond sums and products gets an
        extent of its own."""
        extent = self.bounded(extent)
        return extent if isinstance(extent, int) or _is_plain(extent) else self.named(n, extent)

    def named(self, n: Node, extent: Dim) -> Dim:
        """An extent of its own for an expression; equal expressions share one."""
        spelled = self.bounded(self._spelled(extent))
        text = str(spelled)
        match spelled:
            case Binary("max", a, Const(0)) if str(a) in self._named:
                text = str(a)  # boards refuse a negative extent, so the max changes nothing
        if text not in self._named:
            most = max(0, self.largest(extent))
            found = self.add(n, "extent", self.value(n, extent), most)
            self._named[text] = found
            if isinstance(found, Var):
                self._meaning[found] = extent
        return self._named[text]

    def _spelled(self, extent: Dim) -> Dim:
        """An extent in terms of extents that are not expressions of others."""
        while isinstance(extent, Expr):
            inner = free_vars(extent) & self._meaning.keys()
            if not inner:
                break
            extent = bound_dims([extent], {v: self._meaning[v] for v in inner})[0]
        return extent

    def are_equal(self, a: Dim, b: Dim) -> bool:
        """Whether two extents have one value in every run. No extent is negative."""
        first, second = (_expr(_not_negative(self.bounded(self._spelled(e)))) for e in (a, b))
        apart = self.bounded(dim(binary("-", first, second)))
        return isinstance(apart, int) and apart == 0

    def are_known(self, extent: Dim) -> bool:
        """Whether all that an extent is computed from has a value here."""
        names = {v.name for v in free_vars(extent)} if isinstance(extent, Expr) else set()
        return names <= self.values.keys()

    def is_first_of(self, a: Dim, b: Dim) -> bool:
        """Whether an extent is min(b, 1): 1 wherever b has an element."""
        match self.bounded(self._spelled(a)):
            case Binary("min", Const(1), whole) | Binary("min", whole, Const(1)):
                return self.are_equal(dim(whole), b)
        return False

    def value(self, n: Node, extent: Dim) -> Value:
        """An extent as data: int64[]."""
        match extent:
            case int():
                return n.constant(extent, "int64")
            case Var(name):
                return self.values[name]
            case Binary("%", a, b):
                return n.emit("mod", self.value(n, dim(a)), self.value(n, dim(b)), truncated=False)
            case Binary("//", a, b) if self._may_be_negative(a):  # "divide" rounds towards 0
                whole = n.emit("subtract", self.value(n, dim(a)), self.value(n, binary("%", a, b)))
                return n.emit("divide", whole, self.value(n, dim(b)))
            case Binary(op, a, b) if op in OF_BINARY:
                return n.emit(OF_BINARY[op], self.value(n, dim(a)), self.value(n, dim(b)))
        raise ValueError(f"the extent '{extent}' cannot be computed")

    def vector(self, n: Node, extents: Sequence[Dim]) -> Value:
        """A shape as data: int64[k]."""
        if all(isinstance(e, int) for e in extents):
            return n.constant(list(extents), "int64")
        parts = [n.emit("reshape", self.value(n, e), shape=(1,)) for e in extents]
        made = n.emit("concatenate", *parts, axis=0) if len(parts) > 1 else parts[0]
        self._dims[made] = np.array(list(extents), object)
        return made

    def follow(self, op: str, args: Sequence[Value], attrs: Attrs, result: object) -> None:
        """Notes the integers in an operator's result, if those of its arguments are known."""
        if not isinstance(result, Value) or isinstance(result, Constant):
            return
        if op in ("logical_and", "reshape", "cast") and any(a in self.claims for a in args):
            self._claim(args, result)
            return
        if not any(a in self._dims for a in args):
            return
        integers = all(np.dtype(a.type.dtype).kind in "biu" for a in args)
        arrays: list[Any] = [self.of(a) for a in args]
        if any(a is None for a in arrays):
            return
        if op == "gather":
            arrays[1] = arrays[1].astype(np.int64)
        if op in MOVING:
            (made,) = evaluate(op, arrays, attrs)
        elif op in COUNTING and integers:
            made = np.frompyfunc(lambda a, b: _counted(COUNTING[op], a, b), 2, 1)(*arrays)
        elif op in COMPARING:
            made = np.frompyfunc(lambda a, b: self._decided(COMPARING[op], a, b), 2, 1)(*arrays)
            if None in np.asarray(made, object):
                if made is None:
                    self.claims[result] = (Claim(COMPARING[op], *(a.item() for a in arrays)),)
                return
        elif op == "negative" and integers:
            made = np.frompyfunc(lambda a: _counted("-", 0, a), 1, 1)(*arrays)
        elif op == "check_indices":
            (made,) = arrays
        elif op == "where":
            made = np.where(arrays[0].astype(bool), *arrays[1:])
        elif op == "cast" and attrs["dtype"] in ("int32", "int64", "float32", "float64"):
            (made,) = arrays
        elif op in REDUCING and integers and arrays[0].ndim == 1:
            numbers: list[Dim] = arrays[0].tolist()
            whole = reduce(partial(_counted, REDUCING[op]), numbers)
            made = np.array([whole] if attrs["keepdims"] else whole, object)
        else:
            return
        self._dims[result] = np.asarray(made, object)

    def _claim(self, args: Sequence[Value], result: Value) -> None:
        """Notes the claims of a truth that is true if some others are, where all of them are known
        extents' or constant."""
        known = [a for a in args if not (isinstance(a, Constant) and bool(a.value.all()))]
        if result.type.dtype == "bool" and all(a in self.claims for a in known):
            self.claims[result] = tuple(claim for a in known for claim in self.claims[a])

    def counting(self, number: Value) -> Var:
        """The extent of an iteration's number, in what is tried (`forgotten`)."""
        found = symbol(self.fresh("turn"))
        self.most[found.name] = LARGEST
        self._say(found.name, number)
        return found

    def assume(self, value: Value, extent: Dim) -> None:
        """Notes an integer in what is tried (`forgotten`)."""
        self._dims[value] = np.full(value.type.sizes, extent, object)

    def of(self, value: Value) -> Dims | None:
        """The integers in a value, as numbers and extents; None if unknown."""
        if value in self._dims:
            return self._dims[value]
        if not isinstance(value, Constant):
            return None
        array = value.value
        small = array.size <= MOST_FOLLOWED and array.dtype.kind in "biu"
        return array.astype(object) if small else None

    def _decided(self, comparison: str, a: Any, b: Any) -> bool | None:
        """The result of a comparison of two extents; None if it depends on their values."""
        found = self.bounded(compare(comparison, _expr(a), _expr(b)))
        return bool(found) if isinstance(found, int) else None

    def is_followed(self, value: Value) -> bool:
        return value in self._dims


def _not_negative(extent: Dim) -> Dim:
    """x of max(x, 0)."""
    match extent:
        case Binary("max", x, Const(0)) | Binary("max", Const(0), x):
            return dim(x)
    return extent


def simplified(extent: Dim) -> Dim:
    return dim(simplify_expr(extent, {})) if isinstance(extent, Expr) else int(extent)


def product(extents: Sequence[Dim]) -> Dim:
    whole: Dim = 1
    for extent in extents:
        whole = whole * extent
    return simplified(whole)


def rest(whole: Sequence[Dim], known: Sequence[Dim]) -> Dim:
    """The product of `whole` over that of `known`. What is a factor of both cancels without a
    division, since an extent may be 0."""
    a, left = _factors(whole)
    b, divisors = _factors(known)
    uncancelled: list[Expr] = []
    for extent in divisors:
        same = [n for n, e in enumerate(left) if same_extent(e, extent)]
        if same:
            del left[same[0]]
        else:
            uncancelled.append(extent)
    common = math.gcd(a, b) or 1
    over, under = product([*left, a // common]), product([*uncancelled, b // common])
    if isinstance(over, int) and isinstance(under, int):
        return over // under if under else 0
    return over if is_const(under, 1) else simplified(binary("//", over, under))


def _factors(extents: Sequence[Dim]) -> tuple[int, list[Expr]]:
    """The product of some extents as a number times expressions that are not products."""
    number, factors, left = 1, list[Expr](), list(reversed(extents))
    while left:
        match left.pop():
            case Binary("*", a, b):
                left += dim(b), dim(a)
            case Expr() as extent:
                factors.append(extent)
            case extent:
                number *= extent
    return number, factors


def smaller(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return simplified(binary("min", a, b))


def larger(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return simplified(binary("max", a, b))


def _counted(op: str, a: Any, b: Any) -> Dim:
    return simplified(binary(op, _expr(a), _expr(b)))


def _expr(extent: Any) -> Expr:
    return extent if isinstance(extent, Expr) else const(int(extent))


def _is_plain(extent: Expr) -> bool:
    """Whether an expression is sums and products of extents."""
    match extent:
        case Binary("+" | "-" | "*", a, b):
            return _is_plain(a) and _is_plain(b)
    return not isinstance(extent, Binary)
