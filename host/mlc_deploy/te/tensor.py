"""Tensors, and the operations that produce them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from ..ir import (
    Buffer,
    Dim,
    Evaluate,
    Expr,
    ExprLike,
    IterVar,
    Reduce,
    Stmt,
    Var,
    address_of,
    binary,
    const,
    dtype_of,
    expr,
    extern_name,
    is_const,
    load,
    loads,
    same_dim,
    seq,
    value_range,
    walk,
)
from ..ir.build import shape_text
from ..ir.nodes import TRUE, Arithmetic


class Axes(tuple[IterVar, ...]):
    """Axes in order. `in` and `index` look for the axis itself: `==` of two axes is an expression,
    of the values that they have in an iteration."""

    __slots__ = ()

    def __contains__(self, axis: object) -> bool:
        return any(axis is a for a in self)

    def index(self, axis: object, *_: Any) -> int:
        for number, a in enumerate(self):
            if a is axis:
                return number
        raise ValueError(f"{axis} is not one of the axes")


@dataclass(frozen=True, slots=True, eq=False)
class PlaceholderOp:
    """An input: it has no axes, and reads nothing."""

    name: str
    tag: ClassVar[str] = ""

    @property
    def axis(self) -> Axes:
        return Axes()

    @property
    def reduce_axis(self) -> Axes:
        return Axes()

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class ComputeOp:
    """output[axis] = body[i] for output i; all outputs have one shape."""

    name: str
    axis: Axes
    body: tuple[Expr, ...]
    attrs: Mapping[str, Any]
    tag: str = ""

    @property
    def reduce_axis(self) -> Axes:
        match self.body[0]:
            case Reduce(axes=axes):
                return Axes(axes)
        return Axes()

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors it reads, each once, in the order met."""
        found: dict[Tensor, None] = {}
        for body in self.body:
            for read in loads(body):
                assert isinstance(read.buffer, Tensor)
                found[read.buffer] = None
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class ExternOp:
    """Outputs that the user's functions write. `body` calls them with addresses in `inputs` and in
    `places`, which stand for the outputs."""

    name: str
    inputs: tuple[Tensor, ...]
    places: tuple[Tensor, ...]
    body: Stmt
    tag: ClassVar[str] = ""

    @property
    def axis(self) -> Axes:
        return Axes()

    @property
    def reduce_axis(self) -> Axes:
        return Axes()

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return self.inputs


Operation = PlaceholderOp | ComputeOp | ExternOp
Over = IterVar | Sequence[IterVar]  # what a reduction goes over


Shape = Sequence[Dim] | Dim  # a number or an expression stands for a shape of one dimension


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlice:
    """A tensor with some of its indices: A[i], of which [j] is the element A[i, j]."""

    tensor: Tensor
    indices: tuple[ExprLike, ...]

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Any:
        given = indices if isinstance(indices, tuple) else (indices,)
        return self.tensor[(*self.indices, *given)]

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self} has no elements in order\n  try: its indices")

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"

    @property
    def dtype(self) -> str:
        return self.tensor.dtype


class Tensor(Buffer):
    """A buffer that knows its operation. Its operators make tensors, whose elements they compute;
    of two tensors the shapes broadcast."""

    __slots__ = ("op", "output")

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: str,
        op: Operation,
        output: int = 0,
        strides: Sequence[Dim] | None = None,
    ) -> None:
        super().__init__(name, tuple(shape), dtype, None if strides is None else tuple(strides))
        self.op = op
        self.output = output

    def __call__(self, *indices: ExprLike) -> Expr:
        return self[indices]

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        given = indices if isinstance(indices, tuple) else (indices,)
        if 0 < len(given) < self.ndim:
            return TensorSlice(self, given)  # type: ignore[return-value]  # an element of elements
        return super().__getitem__(given)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"tensor '{self.name}' has no elements in order\n  try: te.compute")

    @property
    def value_index(self) -> int:
        """Which output of its operation it is."""
        return self.output

    def astype(self, dtype: str) -> Tensor:
        return elementwise(lambda x: x.astype(dtype), self)

    def __neg__(self) -> Tensor:
        return elementwise(operator.neg, self)

    def __add__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.add, self, other)

    def __radd__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.add, other, self)

    def __sub__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.sub, self, other)

    def __rsub__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.sub, other, self)

    def __mul__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.mul, self, other)

    def __rmul__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.mul, other, self)

    def __truediv__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.truediv, self, other)

    def __rtruediv__(self, other: Tensor | ExprLike) -> Tensor:
        return elementwise(operator.truediv, other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"tensor '{self.name}' has no truth\n  try: is None, or is not None")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        self._require_tensor(other)
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _require_tensor(self, other: object) -> None:
        """Refuses comparisons of elements: they would be Python's, of objects."""
        if isinstance(other, (Arithmetic, int, float)):
            raise TypeError(
                f"tensor '{self.name}' is compared with {other}\n"
                f"  try: elements, such as {self.name}[i] == {other}"
            )

    def access_ptr(self, access_mask: str = "rw", offset: int = 0) -> Expr:
        """The tensor's address, for te.call_extern. ins and outs say what is read and written;
        te.address_of gives an element's address."""
        if offset:
            raise TypeError("access_ptr: offset is not 0\n  try: te.address_of(A[i, j])")
        return address_of(self[(0,) * self.ndim])

    def __repr__(self) -> str:
        return f"Tensor(name={self.name!r}, shape={self.shape}, dtype={self.dtype!r})"


def elementwise(f: Callable[..., Expr], *args: Tensor | ExprLike) -> Tensor:
    """The tensor of f of the elements that broadcasting puts side by side, as numpy does."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    rank = sorted(t.ndim for t in tensors)[-1]
    shape: list[Dim] = [1] * rank
    for t in tensors:
        for n, extent in enumerate(t.shape, rank - t.ndim):
            if is_const(shape[n], 1):
                shape[n] = extent
            elif not is_const(extent, 1) and not same_dim(extent, shape[n]):
                shapes = " and ".join(shape_text(t.shape) for t in tensors)
                raise ValueError(f"the shapes {shapes} do not broadcast\n  try: te.compute")

    def element(*i: Expr) -> Expr:
        def of(a: Tensor | ExprLike) -> ExprLike:
            if not isinstance(a, Tensor):
                return a
            own = zip(a.shape, i[rank - a.ndim :], strict=True)
            return load(a, [const(0) if is_const(e, 1) else v for e, v in own])

        return f(*map(of, args))

    alone = len(tensors) == 1
    made: Tensor = compute(shape, element, name="T", tag="elemwise" if alone else "broadcast")
    return made


def var(name: str = "n", dtype: str = "int32") -> Var:
    """A symbolic dimension."""
    return Var(name, dtype)


def size_var(name: str = "size", dtype: str = "int32") -> Var:
    """A symbolic dimension; dimensions are never negative."""
    return Var(name, dtype)


def _dims(shape: Shape) -> tuple[Dim, ...]:
    return tuple(shape) if isinstance(shape, Sequence) else (shape,)


class tag_scope(ContextDecorator):
    """The tag of the operations that are made within: `with te.tag_scope("conv"):`, or before a
    function, as @te.tag_scope("conv")."""

    current: ClassVar[str] = ""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __enter__(self) -> tag_scope:
        if tag_scope.current:
            raise ValueError(
                f"tag_scope '{self.tag}' is inside of tag_scope '{tag_scope.current}'\n"
                "  try: one tag for an operation"
            )
        tag_scope.current = self.tag
        return self

    def __exit__(self, *_: object) -> None:
        tag_scope.current = ""


def placeholder(
    shape: Shape,
    dtype: str = "float32",
    name: str = "placeholder",
    strides: Sequence[Dim] | None = None,
) -> Tensor:
    """An input tensor; a dimension is an int or an expression of te.var.

    strides, in elements, such as (s, 1): its rows begin the rows of a larger tensor. The caller
    passes the larger one, of shape (n, s).
    """
    return Tensor(name, _dims(shape), dtype, PlaceholderOp(name), strides=strides)


def reduce_axis(dom: tuple[ExprLike, ExprLike] | ExprLike, name: str = "rv") -> IterVar:
    """An axis to reduce over: reduce_axis((0, n)). Only ranges from 0 are supported."""
    low, high = dom if isinstance(dom, tuple) else (0, dom)
    if not (isinstance(low, int) and low == 0):
        raise ValueError(
            f"reduce_axis '{name}' begins at {low}; axes begin at 0\n"
            f"  try: reduce_axis((0, {high} - {low})) and add {low} where it is used"
        )
    variable = Var(name)
    return IterVar(variable, expr(high), "reduce", variable)


def compute(
    shape: Shape,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str | Mapping[str, Any] = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """The tensor of `shape` whose element at (i, j, …) is fcompute(i, j, …).

    fcompute gives an expression, a reduction (te.sum …), or a tuple of expressions: then a tuple of
    tensors is returned, all of this shape. Raises TypeError where it gives anything else. tag: a
    word for what it computes, which nothing here reads.
    """
    if not isinstance(tag, str):
        raise TypeError(f"te.compute '{name}': the tag is {tag!r}\n  try: attrs={tag!r}")
    dims = _dims(shape)
    names = _axis_names(fcompute, len(dims))
    axis = Axes(
        IterVar(v := Var(n), expr(extent), "spatial", v)
        for n, extent in zip(names, dims, strict=True)
    )
    given = fcompute(*(i.var for i in axis))
    several = isinstance(given, (tuple, list))
    body = tuple(expr(e) for e in (given if several else (given,)))
    for e in body:
        _check_reduce(e, name)
    op = ComputeOp(name, axis, body, dict(attrs or {}), tag or tag_scope.current)
    outputs = tuple(
        Tensor(name if n == 0 else f"{name}_{n}", dims, e.dtype, op, n) for n, e in enumerate(body)
    )
    return outputs if several else outputs[0]


def extern(
    shape: Sequence[Dim] | Sequence[Sequence[Dim]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Tensor], Sequence[Tensor]], Any],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
) -> Any:
    """The tensor of `shape` that the user's functions compute; for several shapes, a list.

    fcompute(ins, outs) gives a call of te.call_extern, or several in order; a tensor among its
    arguments is the address of its first element. All inputs are read and all outputs written, and
    nothing else. dtype: one, or one per output (default: that of the inputs). Raises TypeError.
    """
    several = bool(shape) and isinstance(shape[0], (tuple, list))
    shapes: list[Any] = list(shape) if several else [tuple(shape)]
    known = {t.dtype for t in inputs}
    if dtype is None and len(known) != 1:
        raise TypeError(f"te.extern '{name}': no dtype is given\n  try: dtype=\"float32\"")
    dtypes = [dtype or known.pop()] * len(shapes) if not isinstance(dtype, (list, tuple)) else dtype
    places = tuple(
        placeholder(s, str(d), name if n == 0 else f"{name}_{n}")
        for n, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    )
    made = fcompute(list(inputs), list(places))
    body = seq(_called(name, m) for m in (made if isinstance(made, (list, tuple)) else [made]))
    op = ExternOp(name, tuple(inputs), places, body)
    outputs = [Tensor(p.name, p.shape, p.dtype, op, n) for n, p in enumerate(places)]
    return outputs if several else outputs[0]


def _called(name: str, made: object) -> Stmt:
    if isinstance(made, Stmt):
        return made
    if isinstance(made, Expr) and extern_name(made) is not None:
        return Evaluate(made)
    raise TypeError(
        f"te.extern '{name}': its function returned {made!r}\n"
        '  try: te.call_extern("int32", "name", ins[0], outs[0])'
    )


def _axis_names(fcompute: Callable[..., Any], ndim: int) -> list[str]:
    parameters = list(inspect.signature(fcompute).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        named = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
        return named + [f"i{n}" for n in range(len(named), ndim)]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    if len(required) != ndim:
        raise TypeError(
            f"te.compute of shape with {ndim} dimensions, but its function takes "
            f"{len(required)}: ({', '.join(p.name for p in required)})"
        )
    return [p.name for p in required]


def _check_reduce(e: Expr, name: str) -> None:
    below = [n for n in walk(e) if isinstance(n, Reduce) and n is not e]
    if below:
        raise TypeError(
            f"te.compute '{name}': a reduction is inside another expression\n"
            "  try: compute the reduction as a tensor of its own first"
        )


def reduce(
    combine: str,
    value: ExprLike,
    axis: Over,
    where: Expr = TRUE,
    identity: ExprLike | None = None,
) -> Reduce:
    """A reduction by an operator of the IR ("+", "*", "min", "max") over axes."""
    element = expr(value)
    axes = reduction_axes(axis)
    if identity is None:
        identity = _identity(combine, element.dtype)
    return Reduce(combine, element, axes, where, expr(identity, element.dtype), element.dtype)


def reduction_axes(axis: Over) -> tuple[IterVar, ...]:
    axes = (axis,) if isinstance(axis, IterVar) else tuple(axis)
    if not axes or any(not isinstance(a, IterVar) or a.kind != "reduce" for a in axes):
        raise TypeError("a reduction needs axes made by te.reduce_axis")
    return axes


def _identity(combine: str, dtype: str) -> Expr:
    match combine:
        case "+":
            return const(0, dtype)
        case "*":
            return const(1, dtype)
        case "max":
            return min_value(dtype)
        case "min":
            return max_value(dtype)
    raise ValueError(f"no identity is known for '{combine}'\n  try: give identity=")


def sum(value: ExprLike, axis: Over, where: Expr = TRUE) -> Reduce:
    """The sum over reduction axes."""
    if not isinstance(axis, (IterVar, Sequence)):
        raise TypeError(
            f"te.sum over {axis}, which is not an axis\n"
            "  try: axis=te.reduce_axis((0, n)), or a + b for two scalars"
        )
    return reduce("+", value, axis, where)


def max(value: ExprLike, axis: Over | ExprLike, where: Expr = TRUE) -> Expr:
    """The largest value over reduction axes; of two scalars, the larger: te.max(A[i, j], 0)."""
    return _extreme("max", value, axis, where)


def min(value: ExprLike, axis: Over | ExprLike, where: Expr = TRUE) -> Expr:
    """The smallest value over reduction axes; of two scalars, the smaller."""
    return _extreme("min", value, axis, where)


def _extreme(op: str, value: ExprLike, axis: Over | ExprLike, where: Expr) -> Expr:
    if isinstance(axis, Sequence) or (isinstance(axis, IterVar) and axis.kind == "reduce"):
        return reduce(op, value, axis, where)
    return binary(op, value, axis)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger of two expressions, elementwise."""
    return binary("max", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller of two expressions, elementwise."""
    return binary("min", a, b)


def min_value(dtype: str) -> Expr:
    """The smallest value: minus infinity for floats."""
    return const(float("-inf") if dtype_of(dtype).kind == "float" else value_range(dtype)[0], dtype)


def max_value(dtype: str) -> Expr:
    """The largest value: infinity for floats."""
    return const(float("inf") if dtype_of(dtype).kind == "float" else value_range(dtype)[1], dtype)
