"""Loop IR: what stands between a tensor expression and LLVM.

Nodes are values: rebuilt, never edited, compared by identity (`structural.py` has equality up to
names). Every loop starts at 0 and steps by 1. Semantics:

- Integer `//` and `%` round towards minus infinity, as Python's; `tdiv` and `tmod` towards zero, as
  C's. Overflow of an index is undefined behaviour of the program, never of a pass; data wraps.
- Division by 0, shifts by any amount, and conversions of any float are defined (numbers.py).
- `min`/`max` of floats: a NaN on either side gives NaN.
- Float expressions keep their order. A reduction's steps may run in any order.
- `Select` evaluates both sides; the call `if_then_else(cond, a, b)` only the one it takes, so it
  may guard a load that would be out of bounds.
- A Block runs its body once per point of its iteration domain. Its reads, writes and init say what
  may move: two instances of a block conflict only where they say so. `init` runs before the first
  step of the reduction for each point of the spatial iterations, and where there is no step.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform

from .dtypes import dtype_of

N = TypeVar("N")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: type[N]) -> type[N]:
    """A dataclass with slots that compares by identity, and shows itself as script. It is frozen
    for mypy only: at run time, a frozen node takes five times as long to build."""
    return dataclass(slots=True, eq=False, repr=False)(cls)


ForKind = Literal["serial", "parallel", "vectorized", "unrolled"]
IterKind = Literal["spatial", "reduce"]
Scope = Literal["global", "local"]
NO_ANNOTATIONS: Mapping[str, Any] = MappingProxyType({})


def _frozen(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


# so that programs go to other processes, by any executor's pickle
copyreg.pickle(MappingProxyType, lambda mapping: (_frozen, (dict(mapping),)))


def _always() -> Expr:
    return TRUE


def _no_annotations() -> Mapping[str, Any]:
    return NO_ANNOTATIONS


@dataclass(frozen=True)
class Methods:
    """The functions of the nodes' methods. Their files import this one, so `ir/__init__.py`
    sets them."""

    script: Callable[[Node], str]
    reduced: Callable[[Expr], tuple[Any, ...]]
    binary: Callable[[str, ExprLike, ExprLike], Expr]
    compare: Callable[[str, ExprLike, ExprLike], Expr]
    function: Callable[..., Expr]
    cast: Callable[[str, ExprLike], Expr]
    load: Callable[[Buffer, Sequence[ExprLike]], Expr]


class Node:
    __slots__ = ()
    methods: ClassVar[Methods]

    def __str__(self) -> str:
        return self.methods.script(self)

    def show(self) -> None:
        """Prints it."""
        print(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


# ---------------------------------------------------------------------------------- expressions


class Arithmetic(Node):
    """Operators that make expressions; they fold constants (the functions stand in build.py).

    Every operator of Python makes an expression here, `==` and `!=` too, or is refused: the truth
    of an expression is not known, so `and`, `or`, `not`, `in` and `if` have no answer. `same_as` is
    identity, `same_expr` and `structural_equal` (structural.py) compare what is written. Sets and
    dicts hold nodes by identity.
    """

    __slots__ = ()
    __array_ufunc__ = None  # a number of numpy leaves its operators to the expression

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        if other is None:  # no value, so no comparison: it is another object
            return NotImplemented
        return self.methods.compare("==", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        if other is None:
            return NotImplemented
        return self.methods.compare("!=", self, other)  # type: ignore[arg-type]

    def same_as(self, other: object) -> bool:
        """Whether it is the same node."""
        return self is other

    def __add__(self, other: ExprLike) -> Expr:
        if isinstance(other, Buffer):  # tensors have operators of their own
            return NotImplemented
        return self.methods.binary("+", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return self.methods.binary("+", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        if isinstance(other, Buffer):  # tensors have operators of their own
            return NotImplemented
        return self.methods.binary("-", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return self.methods.binary("-", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        if isinstance(other, Buffer):  # tensors have operators of their own
            return NotImplemented
        return self.methods.binary("*", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return self.methods.binary("*", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        if isinstance(other, Buffer):  # tensors have operators of their own
            return NotImplemented
        return self.methods.binary("/", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return self.methods.binary("/", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return self.methods.binary("//", self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return self.methods.binary("//", other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return self.methods.binary("%", self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return self.methods.binary("%", other, self)

    def __divmod__(self, other: ExprLike) -> tuple[Expr, Expr]:
        return self // other, self % other

    def __rdivmod__(self, other: ExprLike) -> tuple[Expr, Expr]:
        return other // self, other % self

    def __pow__(self, other: ExprLike) -> Expr:
        return self.methods.function("pow", self, other)

    def __rpow__(self, other: ExprLike) -> Expr:
        return self.methods.function("pow", other, self)

    def __and__(self, other: ExprLike) -> Expr:
        return self.methods.binary("&", self, other)

    def __rand__(self, other: ExprLike) -> Expr:
        return self.methods.binary("&", other, self)

    def __or__(self, other: ExprLike) -> Expr:
        return self.methods.binary("|", self, other)

    def __ror__(self, other: ExprLike) -> Expr:
        return self.methods.binary("|", other, self)

    def __xor__(self, other: ExprLike) -> Expr:
        return self.methods.binary("^", self, other)

    def __rxor__(self, other: ExprLike) -> Expr:
        return self.methods.binary("^", other, self)

    def __lshift__(self, other: ExprLike) -> Expr:
        return self.methods.binary("<<", self, other)

    def __rlshift__(self, other: ExprLike) -> Expr:
        return self.methods.binary("<<", other, self)

    def __rshift__(self, other: ExprLike) -> Expr:
        return self.methods.binary(">>", self, other)

    def __rrshift__(self, other: ExprLike) -> Expr:
        return self.methods.binary(">>", other, self)

    def __neg__(self) -> Expr:
        return self.methods.function("-", self)

    def __pos__(self) -> Expr:
        return self.methods.function("+", self)

    def __invert__(self) -> Expr:
        return self.methods.function("~", self)

    def __abs__(self) -> Expr:
        return self.methods.function("abs", self)

    def __round__(self, digits: None = None) -> Expr:
        return self.methods.function("round", self, digits)

    def __lt__(self, other: ExprLike) -> Expr:
        return self.methods.compare("<", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return self.methods.compare("<=", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return self.methods.compare(">", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return self.methods.compare(">=", self, other)

    def equal(self, other: ExprLike) -> Expr:
        """`self == other`."""
        return self.methods.compare("==", self, other)

    def astype(self, dtype: str) -> Expr:
        return self.methods.cast(dtype, self)

    def __bool__(self) -> bool:
        raise UnknownValue(
            f"the truth of '{self}' is not known while the program is being built\n"
            "  try: te.if_then_else(condition, a, b) instead of 'if'; te.all(a, b), te.any(a, b)"
            " and te.not_(a) instead of 'and', 'or' and 'not'; a.same_as(b) for the same object",
            self,
        )


class UnknownValue(TypeError):
    """A number or truth value was asked of an expression, `of`, that has none yet."""

    def __init__(self, text: str, of: Arithmetic | None = None) -> None:
        super().__init__(text)
        self.of = of


class Expr(Arithmetic):
    """A value without side effects. `dtype` names its type, lanes included.

    An expression may stand in many places of another: it is a graph, and a walk that followed each
    of its paths might not end. `walk`, `once` and `bottom_up` (rewrite.py) see each node once.
    """

    __slots__ = ("_facts",)
    _facts: tuple[bytes, int]  # a cache of structural.py
    dtype: str

    def __repr__(self) -> str:  # lists of extents are shown to users
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.methods.reduced(self)

    if not TYPE_CHECKING:  # an expression is not an integer; int() and float() ask for this, too

        def __index__(self) -> int:
            what = f"the value of '{self}' is not known while the program is being built"
            raise UnknownValue(what, self)


ExprLike = Arithmetic | int | float | bool


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    value: int | float | bool
    dtype: str

    def __index__(self) -> int:
        if isinstance(self.value, float):
            raise TypeError(f"{self.value} is not an integer")
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


@node
class Var(Expr):
    name: str
    dtype: str = "int32"


@node
class Load(Expr):
    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: str


@node
class Binary(Expr):
    """op: + - * / // % tdiv tmod min max & | ^ << >> and or; both sides have `dtype`."""

    op: str
    a: Expr
    b: Expr
    dtype: str


@node
class Compare(Expr):
    """op: == != < <= > >=; both sides of one dtype."""

    op: str
    a: Expr
    b: Expr
    dtype: str


@node
class Not(Expr):
    a: Expr
    dtype: str


@node
class Select(Expr):
    condition: Expr
    a: Expr
    b: Expr
    dtype: str


@node
class Cast(Expr):
    """Value conversion: float to integer truncates towards zero and keeps within the range
    (numbers.py), integers wrap."""

    dtype: str
    a: Expr


@node
class Call(Expr):
    """A named intrinsic. Only `ret`, `prefetch` and the user's functions (extern.py) have side
    effects."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Combiner:
    """A step of reductions that go together: of the values so far, `left`, and the values of one
    iteration, `right`, `results` makes the next values."""

    left: tuple[Var, ...]
    right: tuple[Var, ...]
    results: tuple[Expr, ...]

    def __repr__(self) -> str:
        names = [v.name for v in (*self.left, *self.right)]
        return f"lambda {', '.join(names)}: ({', '.join(map(str, self.results))})"


@node
class Reduce(Expr):
    """A reduction, at the top of a tensor expression only: TE lowers it to a block with init.

    `combine` is "+", "*", "min" or "max" (an operator of Binary), or a Combiner; `identity` its
    neutral element.
    """

    combine: str | Combiner
    value: Expr
    axes: tuple[IterVar, ...]
    condition: Expr
    identity: Expr
    dtype: str


@node
class Ramp(Expr):
    """base, base + stride, … : `lanes` values of base's dtype."""

    base: Expr
    stride: Expr
    lanes: int
    dtype: str


@node
class Broadcast(Expr):
    value: Expr
    lanes: int
    dtype: str


@node
class Shuffle(Expr):
    """Lanes picked by number from the concatenation of the vectors."""

    vectors: tuple[Expr, ...]
    lanes: tuple[int, ...]
    dtype: str


# ----------------------------------------------------------------------------------- statements


class Stmt(Node):
    __slots__ = ()


@node
class For(Stmt):
    var: Var
    extent: Expr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=_no_annotations)

    @property
    def name(self) -> str:
        return self.var.name


@node
class IterVar(Arithmetic):
    """An iteration variable of a block: runs over [0, extent), and is `binding` in the loops.
    In arithmetic it stands for its variable."""

    var: Var
    extent: Expr
    kind: IterKind
    binding: Expr

    def as_expr(self) -> Expr:
        return self.var


@node
class Region(Node):
    """A box of a buffer: [minimum, minimum + extent) per dimension."""

    buffer: Buffer
    minimum: tuple[Expr, ...]
    extent: tuple[Expr, ...]


@node
class Block(Stmt):
    name: str
    iters: tuple[IterVar, ...]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr = field(default_factory=_always)
    allocs: tuple[Buffer, ...] = ()
    annotations: Mapping[str, Any] = field(default_factory=_no_annotations)


@node
class Store(Stmt):
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node
class If(Stmt):
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@node
class Let(Stmt):
    var: Var
    value: Expr
    body: Stmt


@node
class Seq(Stmt):
    stmts: tuple[Stmt, ...]


@node
class Evaluate(Stmt):
    value: Expr


# ------------------------------------------------------------------------ buffers and functions

Dim = int | Expr


def dim(extent: Dim) -> Dim:
    """A dimension: a Python int where it is constant."""
    if isinstance(extent, Const):
        return int(extent)
    return extent if isinstance(extent, Expr) else index(extent)


class Buffer(Node):
    """A tensor in memory: elements of `dtype`, row-major unless `strides` (in elements) are given.

    Constant dimensions are Python ints, symbolic ones expressions. scope "local" is per thread,
    small, and meant for registers or the stack. alignment in bytes of element 0.
    """

    __slots__ = ("name", "shape", "dtype", "strides", "scope", "alignment")

    def __init__(
        self,
        name: str,
        shape: tuple[Dim, ...],
        dtype: str = "float32",
        strides: tuple[Dim, ...] | None = None,
        scope: Scope = "global",
        alignment: int = 64,
    ) -> None:
        dtype_of(dtype)
        self.name = name
        self.shape = tuple(dim(extent) for extent in shape)
        self.dtype = dtype
        self.strides = strides
        self.scope: Scope = scope
        self.alignment = alignment

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        given = indices if isinstance(indices, tuple) else (indices,)
        return self.methods.load(self, given)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def replace(self, **changes: Any) -> Buffer:
        kept = {key: getattr(self, key) for key in Buffer.__slots__}
        return Buffer(**{**kept, **changes})


# An attribute of PrimFuncs: the names of the buffers that may share memory with an output.
IN_PLACE = "ir.in_place"

# A call of x, low and high that gives x, an integer which is known to be within: it costs nothing.
BOUNDED = "bounded"

# An attribute of PrimFuncs: floats that become bytes are within int16.
SHORT_FLOATS = "ir.short_floats"

# An attribute of PrimFuncs: the largest value of integer parameters, by name. The symbolic
# dimensions of the buffers are computed from these parameters.
MOST = "ir.most"

# An attribute of a PrimFunc that several kernels share: for each kernel, the values of the scalar
# parameters, by name (outlines.py).
SCALARS = "ir.scalars"

# An attribute of such a PrimFunc: for each kernel, the names of the buffers that it does not have
# (terms.py).
LEFT_OUT = "ir.left_out"

# An attribute of PrimFuncs: the CPU whose scheduling model LLVM uses.
TUNE_CPU = "llvm.tune_cpu"


@node
class PrimFunc(Node):
    """A kernel before code generation. Parameters are buffers and integer variables, in order of
    passing. The body is a root block without iterations.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt
    attrs: Mapping[str, Any] = field(default_factory=_no_annotations)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if isinstance(p, Buffer))

    def script(self) -> str:
        return str(self)

    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> PrimFunc:
        """The function with an attribute, or with each of a dict; "global_symbol" is its name."""
        if not isinstance(key, str):
            func = self
            for name, own in key.items():
                func = func.with_attr(name, own)
            return func
        if key == "global_symbol":
            return PrimFunc(value, self.params, self.body, self.attrs)
        return PrimFunc(self.name, self.params, self.body, {**self.attrs, key: value})


class GlobalVar(str):
    """The name of a function of a module."""

    __slots__ = ()

    @property
    def name_hint(self) -> str:
        return str(self)


@node
class IRModule(Node):
    """Functions by name: PrimFuncs, and the graph level's functions. Functions are values; a module
    is the table of them, and update_func alone edits it."""

    functions: Mapping[str, Any]

    @staticmethod
    def from_expr(func: Any) -> IRModule:
        """A module of one function, by its name."""
        return IRModule({func.name: func})

    def __getitem__(self, name: str) -> Any:
        """The function of a name; "main" is also the name of a module's only function."""
        if name == "main" and name not in self.functions and len(self.functions) == 1:
            return next(iter(self.functions.values()))
        return self.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def get_global_var(self, name: str) -> GlobalVar:
        """The name of a function of the module. Raises ValueError with the nearest names."""
        if name not in self.functions:
            near = get_close_matches(name, self.functions, 3) or list(self.functions)[:5]
            raise ValueError(
                f"the module has no function '{name}'\n  try: {', '.join(near) or 'it is empty'}"
            )
        return GlobalVar(name)

    def get_global_vars(self) -> list[GlobalVar]:
        """The names of all functions."""
        return [GlobalVar(name) for name in self.functions]

    def update_func(self, name: str, func: Any) -> None:
        """Sets the function of a name in this module itself. The function takes the name."""
        if isinstance(func, PrimFunc):
            func = func.with_attr("global_symbol", str(name))
        elif getattr(func, "name", name) != name:
            raise ValueError(f"function '{func.name}' cannot take the name '{name}'")
        object.__setattr__(self, "functions", {**self.functions, str(name): func})

    def script(self) -> str:
        return str(self)
