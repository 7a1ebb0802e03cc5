"""tensorize: a block that computes what an intrinsic describes becomes the intrinsic's statements.

Block and description match if they differ only in names, in the order of sums and products, and in
where their buffers begin. An access of the block is then a base, free of the loops inside, plus the
description's index in the buffer's last dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arith import Linear, linear, simplify_expr, to_expr
from ..arith.linear import Opaque, Ranges
from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Compare,
    Expr,
    For,
    IterVar,
    Load,
    Not,
    PrimFunc,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    expr,
    is_const,
    load,
    loads,
    once,
    rebuild,
    same_expr,
    substitute,
    with_fields,
)
from ..ir.build import strides_of
from ..ir.names import names_of
from .blockize import blockize
from .tensor_intrin import TensorIntrin, get_intrin, nest_of
from .tree import (
    block_at,
    bound_to,
    find_block,
    find_node,
    ranges_at,
    refuse,
    replace,
    vars_in,
)

PRIMITIVE = "tensorize"
INTRIN = "tensor_intrin"  # a block's annotation: the intrinsic that it became
COMMUTATIVE = ("+", "*", "min", "max", "&", "|", "^", "and", "or")
MOST_OPERANDS = 64  # of a chain: powers of data may be longer, instructions are not
Base = tuple[Buffer, tuple[Expr, ...]]  # where a parameter of the description lies


class _Differs(Exception):
    """Block and description differ: how, and after how many equal parts."""

    def __init__(self, how: str, mend: str = "", equal_parts: int = 0) -> None:
        super().__init__(how)
        self.how, self.mend, self.equal_parts = how, mend, equal_parts


def tensorize(func: PrimFunc, at: str, intrin: str) -> tuple[PrimFunc, str]:
    """for …: C[i] += A[k] * B[i, k]   =>   C[Ramp] = Call("llvm.…", C[Ramp], B[…], A[…])

    at: a block as blockize makes it, or a loop, which is blockized first. The result is the block's
    name. Raises ScheduleError saying what differs where block and description do not match.
    """
    found = get_intrin(intrin)
    path = find_node(func, at, PRIMITIVE)
    name = at
    if isinstance(path[-1], For):
        func, name = blockize(func, at, PRIMITIVE)
        path = find_block(func, name, PRIMITIVE)
    block = block_at(path)
    for outer in path:
        if isinstance(outer, For) and outer.kind == "vectorized":
            refuse(PRIMITIVE, f"loop '{outer.name}' around block '{name}' is vectorized", outer)
    if INTRIN in block.annotations:
        refuse(PRIMITIVE, f"block '{name}' is '{block.annotations[INTRIN]}' already", block)
    try:
        bases = _matched(found, block, ranges_at(path))
    except _Differs as difference:
        refuse(
            PRIMITIVE,
            f"block '{name}' does not match intrinsic '{intrin}': {difference.how}",
            block,
            difference.mend,
        )
    body = _placed(found.statements, bases)
    notes = {**block.annotations, INTRIN: intrin}
    made = with_fields(block, body=body, init=None, annotations=notes)
    if found.nest[1].init is not None:
        made = _without_reduction(made, func)
    return replace(func, block, made), name


def _without_reduction(block: Block, func: PrimFunc) -> Block:
    """The block without its reduce iterations, which have one step each. It is complete then."""
    spatial = tuple(i for i in block.iters if i.kind == "spatial")
    if not spatial:
        var = Var(names_of(func).fresh("vu"))
        spatial = (IterVar(var, const(1), "spatial", const(0)),)
    zero = {i.var: const(0, i.var.dtype) for i in block.iters if i.kind == "reduce"}
    return substitute(with_fields(block, iters=spatial), zero)


def _placed(body: Stmt, bases: Mapping[Buffer, Base]) -> Stmt:
    """The implementation on the block's buffers."""

    def moved(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        actual, base = bases[buffer]
        lead = actual.ndim - len(indices)
        own = (_shifted(visit(i), by) for i, by in zip(indices, base[lead:], strict=True))
        return actual, (*base[:lead], *own)

    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(buffer, indices):
                return load(*moved(buffer, indices))
            case Store(buffer, indices, value):
                return Store(*moved(buffer, indices), visit(value))
        return rebuild(m, visit)

    placed: Stmt = visit(body)
    return placed


def _shifted(index: Expr, by: Expr) -> Expr:
    if isinstance(index, Ramp):
        return Ramp(by + index.base, index.stride, index.lanes, index.dtype)
    return index if is_const(by, 0) else by + index


# ---------------------------------------------------------------------------------------- matching


def _matched(intrin: TensorIntrin, block: Block, ranges: Ranges) -> dict[Buffer, Base]:
    """Where the description's parameters lie in the block's buffers; raises _Differs."""
    loops, leaf = intrin.nest
    found = nest_of(block.body)
    inner, inside = found if found is not None else ([], block)
    guarded = inside is not block and not is_const(inside.predicate, True)
    if guarded or not isinstance(inside.body, Store):
        raise _Differs("it is not loops around one block with one store, without a predicate")
    assert isinstance(leaf.body, Store)
    match = _Match(ranges)
    match.store(
        _renamed(match, loops, _in_loops(leaf, leaf.body), inner),
        inside.body if inside is block else _in_loops(inside, inside.body),
    )
    _match_inits(match, leaf, block)
    output = leaf.body.buffer
    for buffer, (actual, _) in match.bases.items():
        if buffer is not output and actual is match.bases[output][0]:
            raise _Differs(f"it reads '{actual.name}', which it writes, as '{buffer.name}'")
    return match.bases


def _in_loops(block: Block, s: Store) -> Store:
    """A store of a block in terms of the loops around it."""
    return substitute(s, {i.var: i.binding for i in block.iters})


def _match_inits(match: _Match, leaf: Block, block: Block) -> None:
    if leaf.init is None:
        if block.init is not None:
            raise _Differs(
                "the block has an init, the intrinsic adds to what is there",
                "decompose_reduction first",
            )
        return
    if block.init is None:
        raise _Differs("the block has no init, the intrinsic begins with one")
    for i in block.iters:
        if i.kind == "reduce" and not is_const(i.extent, 1):
            raise _Differs(
                f"the block reduces over '{i.var.name}' of {i.extent}, the intrinsic begins with "
                "its init every time",
                "decompose_reduction first, and an intrinsic without init",
            )
    inner, inside = nest_of(block.init) or ([], block)
    init = inside.init if inside is block else inside.body
    if not isinstance(init, Store) or not isinstance(leaf.init, Store):
        raise _Differs("the init is not one store")
    spatial = bound_to(leaf, "spatial")
    loops = [o for o in match.loops if o.var in spatial]
    match.store(
        _renamed(match, loops, _in_loops(leaf, leaf.init), inner),
        init if inside is block else _in_loops(inside, init),
    )


def _renamed(match: _Match, loops: list[For], wanted: Store, inner: list[For]) -> Store:
    """The description's store in terms of the block's loops, which become the loops of the match.
    There must be as many, with equal extents; loops of one iteration do not count."""
    first = {o.var: const(0, o.var.dtype) for o in loops if is_const(o.extent, 1)}
    ours = [o for o in loops if o.var not in first]
    theirs = [o for o in inner if not is_const(o.extent, 1)]
    if [str(o.extent) for o in ours] != [str(o.extent) for o in theirs]:
        raise _Differs(
            f"its inner loops are {_loops_text(theirs)}, the intrinsic's are {_loops_text(ours)}",
            "split and reorder them first",
        )
    match.loops = loops
    match.inner = {o.var for o in theirs}
    match.ranges = {**match.ranges, **{o.var: (0, int(o.extent) - 1) for o in theirs}}  # type: ignore[call-overload]
    values = {o.var: p.var for o, p in zip(ours, theirs, strict=True)}
    return substitute(wanted, {**first, **values})


def _loops_text(loops: list[For]) -> str:
    return ", ".join(f"{o.name} of {o.extent}" for o in loops) or "none"


class _Match:
    """The state of a match: where parameters lie so far, and how many parts were equal."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.loops: list[For] = []  # of the description
        self.inner: set[Var] = set()  # of the block
        self.bases: dict[Buffer, Base] = {}
        self.equal_parts = 0

    def differs(self, how: str, mend: str = "") -> _Differs:
        return _Differs(how, mend, self.equal_parts)

    def store(self, want: Store, got: Store) -> None:
        self.access(want.buffer, want.indices, got.buffer, got.indices)
        self.value(want.value, got.value)

    # -------------------------------------------------------------------------------- values

    def value(self, want: Expr, got: Expr) -> None:
        """Raises _Differs unless `got` computes what `want` does."""
        if _is_index(want) and _is_index(got):
            if not same_expr(simplify_expr(want, self.ranges), simplify_expr(got, self.ranges)):
                raise self.differs(f"it computes {got}, where {want} is expected")
            self.equal_parts += 1
            return
        if want.dtype != got.dtype:
            raise self.differs(
                f"it computes {got}, of {got.dtype}, where {want}, of {want.dtype}, is expected"
            )
        if type(want) is not type(got):
            raise self.differs(f"it computes {got}, where {want} is expected")
        match want, got:
            case Load(), Load():
                self.access(want.buffer, want.indices, got.buffer, got.indices)
            case Binary(op), Binary():
                if op != got.op:
                    raise self.differs(f"it computes {got}, where {want} is expected")
                self.equal_parts += 1
                self.operands(op, want, got)
            case Compare(op, a, b), Compare(op2, x, y):
                if op != op2:
                    raise self.differs(f"it computes {got}, where {want} is expected")
                self.all_of((a, b), (x, y))
            case Cast(_, a), Cast(_, x):
                self.require_dtype(a.dtype, x.dtype, got)
                self.all_of((a,), (x,))
            case Not(a), Not(x):
                self.all_of((a,), (x,))
            case Select(c, a, b), Select(d, x, y):
                self.all_of((c, a, b), (d, x, y))
            case Call(name, args), Call(other, given):
                if name != other or len(args) != len(given):
                    raise self.differs(f"it calls {other}, where {name} is expected")
                self.all_of(args, given)
            case _:
                if not same_expr(want, got):
                    raise self.differs(f"it computes {got}, where {want} is expected")

    def all_of(self, want: tuple[Expr, ...], got: tuple[Expr, ...]) -> None:
        self.equal_parts += 1
        for a, b in zip(want, got, strict=True):
            self.value(a, b)

    def operands(self, op: str, want: Binary, got: Binary) -> None:
        """The operands in some order: of whole chains for integers, of one operation for floats."""
        ours, theirs = _chain(op, want), _chain(op, got)
        if len(ours) != len(theirs):
            raise self.differs(f"it computes {got}, where {want} is expected")
        if op in COMMUTATIVE:
            self.in_some_order(ours, theirs)
        else:
            self.all_of(tuple(ours), tuple(theirs))

    def in_some_order(self, want: list[Expr], got: list[Expr]) -> None:
        """Each of `want` with another of `got`; else _Differs of the attempt that went furthest."""
        if not want:
            return
        failures: list[_Differs] = []
        for n, candidate in enumerate(got):
            before = dict(self.bases), self.equal_parts
            try:
                self.value(want[0], candidate)
                self.in_some_order(want[1:], got[:n] + got[n + 1 :])
                return
            except _Differs as difference:
                failures.append(difference)
                self.bases, self.equal_parts = before
        raise max(failures, key=lambda failure: failure.equal_parts)

    def require_dtype(self, want: str, got: str, where: Expr) -> None:
        if want != got:
            raise self.differs(f"{where} converts from {got}, where {want} is expected")

    # ------------------------------------------------------------------------------ accesses

    def access(
        self, buffer: Buffer, want: tuple[Expr, ...], actual: Buffer, got: tuple[Expr, ...]
    ) -> None:
        """Binds the description's `buffer` to a place in `actual`, the same for every access."""
        mine, other = buffer.name, actual.name
        if buffer.dtype != actual.dtype:
            raise self.differs(
                f"'{other}' is {actual.dtype}, the intrinsic's '{mine}' is {buffer.dtype}"
            )
        lead = actual.ndim - buffer.ndim
        if lead < 0:
            raise self.differs(
                f"'{other}' has {actual.ndim} dimensions, the intrinsic's '{mine}' {buffer.ndim}"
            )
        base: list[Expr] = []
        for n, found in enumerate(got):
            wanted: Expr = want[n - lead] if n >= lead else const(0)
            base.append(self.base_of(n, found, wanted, other))
        self.require_strides(buffer, actual)
        known = self.bases.setdefault(buffer, (actual, tuple(base)))
        same = known[0] is actual and all(map(self.same, known[1], base))
        if not same:
            raise self.differs(
                f"the intrinsic's '{mine}' would lie at {load(*known)} and at {load(actual, base)}"
            )
        self.equal_parts += 1

    def same(self, a: Expr, b: Expr) -> bool:
        return linear(a, self.ranges) == linear(b, self.ranges)

    def base_of(self, n: int, found: Expr, wanted: Expr, name: str) -> Expr:
        """An index minus the description's, which must be free of the inner loops. Data in both
        must be the same."""
        got, want = linear(found, self.ranges), linear(wanted, self.ranges)
        for atom, coefficient in tuple(want.terms.items()):
            if not isinstance(atom, Opaque) or not any(True for _ in loads(atom.expr)):
                continue
            same = (a for a, c in got.terms.items() if isinstance(a, Opaque) and c == coefficient)
            data = next(same, None)
            if data is None:
                raise self.differs(f"index {n} of '{name}' is {found}, without {wanted}")
            self.value(atom.expr, data.expr)
            got, want = got.without(data), want.without(atom)
        base = to_expr(got.plus(want, -1), found.dtype)
        if vars_in(base) & self.inner:
            moving = Linear(0, want.terms)
            raise self.differs(
                f"index {n} of '{name}' is {to_expr(got, found.dtype)}, which is not a base plus "
                f"{to_expr(moving, found.dtype)}"
            )
        return base

    def require_strides(self, buffer: Buffer, actual: Buffer) -> None:
        """Strides that the description fixes must be those of the buffer."""
        lead = actual.ndim - buffer.ndim
        theirs = strides_of(actual)[lead:]
        for n, (want, got, size) in enumerate(
            zip(strides_of(buffer), theirs, buffer.shape, strict=True)
        ):
            if is_const(size, 1) or isinstance(want, Var):
                continue
            if not self.same(expr(want), expr(got)):
                raise self.differs(
                    f"dimension {n + lead} of '{actual.name}' has stride {got}, the intrinsic's "
                    f"'{buffer.name}' has {want} there",
                    "transform_layout so that the tile is contiguous",
                )


def _is_index(e: Expr) -> bool:
    """Whether e is an integer or a condition made of variables and constants alone."""
    return dtype_of(e.dtype).kind != "float" and not any(True for _ in loads(e))


def _chain(op: str, e: Expr) -> list[Expr]:
    """The operands of a chain of one operation; only the first ones of a long chain."""
    if not isinstance(e, Binary) or e.op != op:
        return [e]
    if op not in COMMUTATIVE or dtype_of(e.dtype).kind == "float":
        return [e.a, e.b]
    found: list[Expr] = []
    left: list[Expr] = [e]
    while left and len(found) < MOST_OPERANDS:
        part = left.pop()
        if isinstance(part, Binary) and part.op == op:
            left += (part.b, part.a)
        else:
            found.append(part)
    return found
