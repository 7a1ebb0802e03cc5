"""From a graph of tensor expressions to a PrimFunc of loops and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import (
    Block,
    Buffer,
    Dim,
    Expr,
    IterVar,
    Let,
    PrimFunc,
    Reduce,
    Region,
    Stmt,
    Store,
    Var,
    binary,
    const,
    expr,
    if_then_else,
    is_const,
    replace_buffers,
    seq,
    substitute,
)
from ..ir.build import loop_nest
from ..ir.names import Names
from ..ir.nodes import Combiner
from ..ir.regions import point_regions
from .tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor


def create_prim_func(args: Sequence[Tensor | Var], name: str = "main") -> PrimFunc:
    """Loops and blocks for the tensors in args, which become the parameters in this order.

    Computed tensors in args are outputs; others become inner buffers. Raises ValueError when a
    placeholder that is needed is missing, or an argument occurs twice.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    if len(set(tensors)) != len(tensors):
        raise ValueError("create_prim_func: an argument occurs twice in args")
    order = topological(tensors)
    missing = [t.name for t in order if isinstance(t.op, PlaceholderOp) and t not in tensors]
    if missing:
        raise ValueError(
            f"create_prim_func: the outputs read {', '.join(missing)}, which args leaves out\n"
            "  try: add the placeholders to args"
        )
    names, block_names = Names(), Names()
    buffers: dict[Buffer, Buffer] = {}
    for tensor in [*tensors, *(t for t in order if t not in tensors)]:
        unique = names.fresh(tensor.name)
        buffers[tensor] = Buffer(unique, tensor.shape, tensor.dtype, tensor.strides)
    body: list[Stmt] = []
    done: set[Operation] = set()
    for tensor in order:
        op = tensor.op
        if isinstance(op, PlaceholderOp) or op in done:
            continue
        done.add(op)
        outputs = sorted((t for t in order if t.op is op), key=lambda t: t.output)
        if isinstance(op, ExternOp):
            body.append(_calls(op, outputs, buffers, names, block_names))
        else:
            body.append(_nest(op, outputs, buffers, names, block_names))
    inner = tuple(b for t, b in buffers.items() if t not in tensors)
    root = Block("root", (), (), (), seq(body), allocs=inner)
    params = tuple(buffers[a] if isinstance(a, Tensor) else a for a in args)
    return PrimFunc(name, params, root)


def topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor the outputs need, producers first."""
    order: dict[Tensor, None] = {}
    stack = list(reversed(outputs))
    while stack:
        tensor = stack[-1]
        sources = tensor.op.input_tensors
        left = [source for source in sources if source not in order]
        if left:
            stack.extend(reversed(left))
        else:
            order[stack.pop()] = None
    return list(order)


def _nest(
    op: ComputeOp,
    outputs: Sequence[Tensor],
    buffers: dict[Buffer, Buffer],
    names: Names,
    block_names: Names,
) -> Stmt:
    """One block for an operation, in loops over its axes."""
    loops: list[tuple[Var, Expr]] = []
    iters: list[IterVar] = []
    to_loop: dict[Var, Expr] = {}
    to_block: dict[Var, Expr] = {}
    for axis in (*op.axis, *op.reduce_axis):
        loop = Var(names.fresh(axis.var.name), axis.var.dtype)
        inside = Var(f"v_{loop.name}", axis.var.dtype)
        names.fresh(inside.name)
        extent = substitute(axis.extent, to_loop)  # it may be of an axis before it
        loops.append((loop, extent))
        iters.append(IterVar(inside, extent, axis.kind, loop))
        to_loop[axis.var], to_block[axis.var] = loop, inside
    here = tuple(to_block[axis.var] for axis in op.axis)
    init: list[Stmt] = []
    body: list[Stmt] = []
    inner: tuple[Buffer, ...] = ()
    if isinstance(first := op.body[0], Reduce) and isinstance(first.combine, Combiner):
        values = [replace_buffers(substitute(e, to_block), buffers) for e in op.body]
        places = {t.output: buffers[t] for t in outputs}
        inner = tuple(
            Buffer(names.fresh(f"{op.name}_{n}"), op_shape(op), e.dtype)
            for n, e in enumerate(values) if n not in places
        )  # fmt: skip
        unused = iter(inner)
        written = [places[n] if n in places else next(unused) for n in range(len(values))]
        init, body = _together(first.combine, values, written, here, names)
        outputs = ()
    for tensor in outputs:
        value = replace_buffers(substitute(op.body[tensor.output], to_block), buffers)
        out = buffers[tensor]
        if isinstance(value, Reduce):
            init.append(Store(out, here, value.identity))
            assert isinstance(value.combine, str)
            step = binary(value.combine, out[here], value.value)
            if not is_const(value.condition, True):
                step = if_then_else(value.condition, step, out[here])
            body.append(Store(out, here, step))
        else:
            body.append(Store(out, here, value))
    stmt = seq(body)
    reads, writes = point_regions(stmt)
    block = Block(
        block_names.fresh(op.name),
        tuple(iters) or (_unit_iter(names),),
        tuple(r for r in reads if r.buffer not in {w.buffer for w in writes}),
        writes,
        stmt,
        seq(init) if init else None,
        annotations=_of_buffers(dict(op.attrs), buffers),
        allocs=inner,
    )
    return loop_nest(loops, block)


def op_shape(op: ComputeOp) -> tuple[Dim, ...]:
    return tuple(axis.extent for axis in op.axis)


def _together(
    combiner: Combiner,
    values: Sequence[Expr],
    written: Sequence[Buffer],
    here: tuple[Expr, ...],
    names: Names,
) -> tuple[list[Stmt], list[Stmt]]:
    """(inits, steps) of reductions that go together: all results of a step come from the values
    before it."""
    reduced = [e for e in values if isinstance(e, Reduce)]
    before = [out[here] for out in written]
    given: dict[Var, Expr] = dict(zip(combiner.left, before, strict=True))
    given |= dict(zip(combiner.right, (e.value for e in reduced), strict=True))
    condition = reduced[0].condition
    steps = [substitute(e, given) for e in combiner.results]
    if not is_const(condition, True):
        steps = [if_then_else(condition, e, b) for e, b in zip(steps, before, strict=True)]
    init = [Store(o, here, e.identity) for o, e in zip(written, reduced, strict=True)]
    made = [Var(names.fresh(f"v_{o.name}"), o.dtype) for o in written]
    body = seq(Store(o, here, v) for o, v in zip(written, made, strict=True))
    if len(made) == 1:
        return [*init], [Store(written[0], here, steps[0])]
    for v, e in reversed(list(zip(made, steps, strict=True))):
        body = Let(v, e, body)
    return [*init], [body]


def _of_buffers(attrs: Any, buffers: Mapping[Buffer, Buffer]) -> Any:
    """Attributes of an operation, with the program's buffers for tensors."""
    match attrs:
        case Tensor():
            return buffers.get(attrs, attrs)
        case list() | tuple():
            return type(attrs)(_of_buffers(a, buffers) for a in attrs)
        case Mapping():
            return {key: _of_buffers(a, buffers) for key, a in attrs.items()}
    return attrs


def _calls(
    op: ExternOp,
    outputs: Sequence[Tensor],
    buffers: dict[Buffer, Buffer],
    names: Names,
    block_names: Names,
) -> Stmt:
    """One block that calls the user's functions. An unused output becomes a buffer of the block."""
    made = {t.output: buffers[t] for t in outputs}
    inner = [
        Buffer(names.fresh(p.name), p.shape, p.dtype) for n, p in enumerate(op.places)
        if n not in made
    ]  # fmt: skip
    rest = iter(inner)
    written = [made[n] if n in made else next(rest) for n in range(len(op.places))]
    moved = buffers | dict[Buffer, Buffer](zip(op.places, written, strict=True))
    iters = (_unit_iter(names),)
    return Block(
        block_names.fresh(op.name),
        iters,
        tuple(_all_of(buffers[t]) for t in dict.fromkeys(op.inputs)),
        tuple(_all_of(b) for b in written),
        replace_buffers(op.body, moved),
        allocs=tuple(inner),
    )


def _all_of(b: Buffer) -> Region:
    return Region(b, (const(0),) * b.ndim, tuple(expr(n) for n in b.shape))


def _unit_iter(names: Names) -> IterVar:
    """A block of a scalar result still has one iteration, so that it is not a root."""
    return IterVar(Var(names.fresh("vu")), expr(1), "spatial", const(0))
