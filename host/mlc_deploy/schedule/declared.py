"""Tensor intrinsics from declarations (te/tensor_intrin.py): the whole, the reset, the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ScheduleError
from ..ir import (
    Block,
    Call,
    PrimFunc,
    Reduce,
    Stmt,
    dtype_of,
    once,
    rebuild,
    statements,
    structural_hash,
    walk,
    with_fields,
)
from ..te import Tensor, compute, create_prim_func
from ..te.tensor_intrin import DeclaredIntrin, View
from .tensor_intrin import (
    TensorIntrin,
    accumulating,
    features_for,
    is_llvm,
    machine_of,
    register_intrin,
    with_buffers,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Names of registered intrinsics; "" where the declaration gives none."""

    whole: str
    reset: str
    update: str


def registered_parts(declared: DeclaredIntrin) -> Parts:
    """Registers the parts of a declaration under names that follow from their content: a trace with
    these names replays wherever the declaration has been used. Raises ScheduleError."""
    op = declared.op
    inputs = list(op.input_tensors)
    (body,) = op.body
    output = Tensor(op.name, [a.extent for a in op.axis], body.dtype, op)
    described = create_prim_func([*inputs, output], declared.name)
    strides = [declared.binds.get(t) for t in (*inputs, output)]
    moved = {
        b: b.replace(strides=bound.strides)
        for b, bound in zip(described.buffers, strides, strict=True)
        if bound is not None and bound.strides is not None
    }
    whole = with_buffers(described, moved)
    *ins, out = (View(b) for b in whole.buffers)
    given = declared.function(ins, [out])
    parts = list(given) if isinstance(given, (tuple, list)) else [given]
    parts += [None] * (3 - len(parts))
    if len(parts) > 3 or any(p is not None and not isinstance(p, Stmt) for p in parts):
        raise ScheduleError(
            f"intrinsic '{declared.name}': its function returned {given!r:.60}",
            mend="a statement, or three: of the whole, of setting to 0, of adding to",
        )
    reduces = isinstance(body, Reduce)
    names = [_registered(declared, "", whole, parts[0])]
    names.append(_registered(declared, "reset", _reset(whole), parts[1]) if reduces else "")
    names.append(_registered(declared, "update", accumulating(whole), parts[2]) if reduces else "")
    return Parts(*names)


def _reset(whole: PrimFunc) -> PrimFunc:
    """The description of setting the result to the reduction's identity; its other parameters are
    not used."""
    out = whole.buffers[-1]
    identity = _init_of(whole)
    made: Tensor = compute(out.shape, lambda *i: identity, name=out.name)
    func = create_prim_func([made], whole.name)
    return with_buffers(func, {func.buffers[0]: out})


def _init_of(func: PrimFunc) -> Any:
    inits = (s.init for s in statements(func.body) if isinstance(s, Block))
    return next(init.value for init in inits if init is not None)  # type: ignore[attr-defined]


def _registered(
    declared: DeclaredIntrin, part: str, description: PrimFunc, given: Stmt | None
) -> str:
    if given is None:
        return ""
    body = _named(given)
    code = with_fields(description, body=Block("root", (), (), (), body))
    name = ".".join(filter(None, (declared.name, part, structural_hash(code)[:8])))
    features = declared.features
    if features is None:
        found: dict[str, frozenset[str]] = {}
        for call in sorted(_calls(body)):
            machine, needed = machine_of(call), features_for(call)
            if machine is not None and needed is not None:
                found[machine] = found.get(machine, frozenset()) | needed
        features = found
    register_intrin(TensorIntrin(name, description, _given(body), features), override=True)
    return name


def _given(body: Stmt) -> Callable[..., Stmt]:
    return lambda *buffers: body  # it uses the description's buffers


def _calls(body: Stmt) -> set[str]:
    return {n.name for n in walk(body) if isinstance(n, Call) and is_llvm(n.name)}


def _named(body: Stmt) -> Stmt:
    """body with the whole names of LLVM's intrinsics, which end in types, where such a name is
    known."""

    @once
    def visit(m: Any) -> Any:
        if isinstance(m, Call) and is_llvm(m.name) and features_for(m.name) is None:
            kinds = [_suffix(m.dtype), *(_suffix(a.dtype) for a in m.args[-1:])]
            for end in (kinds[0], ".".join(kinds)):
                if features_for(f"{m.name}.{end}") is not None:
                    return Call(f"{m.name}.{end}", tuple(map(visit, m.args)), m.dtype)
        return rebuild(m, visit)

    result: Stmt = visit(body)
    return result


def _suffix(dtype: str) -> str:
    kind = dtype_of(dtype)
    letter = "f" if kind.kind == "float" else "i"
    lanes = f"v{kind.lanes}" if kind.lanes > 1 else ""
    return f"{lanes}{letter}{kind.bits}"
