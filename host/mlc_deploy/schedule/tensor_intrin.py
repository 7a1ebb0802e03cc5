"""Tensor intrinsics: what an instruction computes, as a loop nest, and how it is written.

tensorize looks for the description, and tests check the implementation against it. Its shapes are
those of one use. The implementation reads and writes the description's own buffers, in vectors: the
last index of an access is a Ramp, or several indices are vectors together.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

from ..arith import expr_bounds, loop_ranges
from ..errors import ScheduleError
from ..ir import (
    Block,
    Buffer,
    Call,
    Expr,
    For,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    dtype_of,
    replace_buffers,
    statements,
    walk,
    with_fields,
)
from ..ir.build import strides_of
from ..ir.lanes import lane_by_lane
from .tree import is_leaf

MACHINES = {"aarch64": "aarch64", "arm": "arm", "x86": "x86_64"}  # LLVM's names of intrinsics: ours
Features = Mapping[str, frozenset[str]]


@dataclass(frozen=True, eq=False)
class TensorIntrin:
    """One way to use an instruction (or a few).

    described: the description, or a function that makes it on first use: loops around one block
    with one store. With an init it overwrites its output, without one it adds to it. A parameter is
    contiguous unless its strides are variables: then its rows may lie anywhere.
    implementation: the statements, given the description's buffers; or a PrimFunc with the same
    parameters. Only stores: no loops.
    features: per machine, the CPU features that it needs, by LLVM's names. instruction: a regular
    expression that the assembly must match. domains: the values of a parameter for which both
    agree, if not all.
    """

    name: str
    described: PrimFunc | Callable[[], PrimFunc]
    implementation: PrimFunc | Callable[..., Stmt]
    features: Features
    instruction: str = ""
    domains: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def description(self) -> PrimFunc:
        return self.described if isinstance(self.described, PrimFunc) else self.described()

    @cached_property
    def nest(self) -> tuple[list[For], Block]:
        """The description's loops and its block."""
        root = self.description.body
        found = nest_of(root.body if isinstance(root, Block) and not root.iters else root)
        if found is None or not isinstance(found[1].body, Store) or not is_leaf(found[1]):
            self._wrong("the description is not loops around one block with one store")
        return found

    @property
    def extents(self) -> tuple[tuple[str, int], ...]:
        """The description's iterations, outermost first: (kind, how many)."""
        return tuple((i.kind, int(i.extent)) for i in self.nest[1].iters)  # type: ignore[call-overload]

    @cached_property
    def statements(self) -> Stmt:
        """The implementation, on the description's buffers."""
        buffers = self.description.buffers
        given = self.implementation
        if not isinstance(given, PrimFunc):
            body = given(*buffers)
        else:
            root = given.body
            inside = root.body if isinstance(root, Block) else root
            body = replace_buffers(inside, dict(zip(given.buffers, buffers, strict=True)))
        if not all(isinstance(s, (Store, Seq)) for s in statements(body)):
            self._wrong("the implementation holds more than stores")
        for n in walk(body):
            if isinstance(n, (Load, Store)):
                self._require_inside(n.buffer, n.indices)
        return body

    @cached_property
    def calls(self) -> frozenset[str]:
        """LLVM's intrinsics that the implementation calls."""
        return frozenset(
            n.name for n in walk(self.statements) if isinstance(n, Call) and is_llvm(n.name)
        )

    def check(self) -> None:
        """Raises ScheduleError for a malformed description or implementation."""
        _, block = self.nest
        for s in (block.body, *statements(self.statements)):
            if isinstance(s, Store) and dtype_of(s.value.dtype).scalar != s.buffer.dtype:
                self._wrong(f"'{s}' stores {s.value.dtype} to {s.buffer.dtype}")

    def _require_inside(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        if not any(getattr(n, "buffer", None) is buffer for n in walk(self.nest[1].body)):
            self._wrong(f"the implementation uses '{buffer.name}', which is not described")
        scalar, lanes = lane_by_lane(indices)
        ranges = loop_ranges([] if lanes is None else [lanes])
        for index, size in zip(scalar, buffer.shape, strict=True):
            low, high = expr_bounds(index, ranges)
            if low is None or high is None or low < 0 or not isinstance(size, int) or high >= size:
                self._wrong(f"the implementation may leave '{buffer.name}' by index {index}")

    def _wrong(self, why: str) -> NoReturn:
        raise ScheduleError(f"intrinsic '{self.name}': {why}", where=str(self.description))


def nest_of(s: Stmt) -> tuple[list[For], Block] | None:
    """(loops, block) of loops around one block; None for anything else."""
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    return (loops, s) if isinstance(s, Block) else None


def is_llvm(call: str) -> bool:
    return call.startswith("llvm.")


# ------------------------------------------------------------------------------ making descriptions


def accumulating(description: PrimFunc) -> PrimFunc:
    """The description without its init: it adds to what its output holds."""
    root = description.body
    assert isinstance(root, Block)
    found = nest_of(root.body)
    assert found is not None and found[1].init is not None
    loops, block = found
    updated = with_fields(block, init=None, reads=(*block.reads, *block.writes))
    body: Stmt = updated
    for loop in reversed(loops):
        body = with_fields(loop, body=body)
    return with_fields(description, body=with_fields(root, body=body))


def rows_apart(description: PrimFunc, *names: str) -> PrimFunc:
    """The description, but rows of the named two-dimensional parameters may lie anywhere in
    memory."""
    loose = {
        b: b.replace(strides=(Var(f"{b.name}_s0"), *strides_of(b)[1:]))
        for b in description.buffers
        if b.name in names
    }
    return with_buffers(description, loose)


def with_buffers(func: PrimFunc, others: Mapping[Buffer, Buffer]) -> PrimFunc:
    """The function with other buffers in place of some, also as parameters."""
    params = tuple(others.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    return with_fields(func, params=params, body=replace_buffers(func.body, others))


# ---------------------------------------------------------------------------------------- registry
# The operator library registers its intrinsics (ops/__init__.py), users theirs.

_REGISTRY: dict[str, TensorIntrin] = {}


def register_intrin(
    intrin: TensorIntrin, override: bool = False, *, checked: bool = False
) -> TensorIntrin:
    """Registers an intrinsic by its name. Raises ScheduleError for a taken name, unless override,
    and for a malformed description or implementation, unless checked before."""
    if intrin.name in _REGISTRY and not override:
        raise ScheduleError(
            f"an intrinsic '{intrin.name}' is registered already", mend="override=True replaces it"
        )
    if not checked:
        intrin.check()
    _REGISTRY[intrin.name] = intrin
    return intrin


def get_intrin(name: str) -> TensorIntrin:
    """The intrinsic of that name; ScheduleError naming the nearest."""
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, 3) or sorted(_REGISTRY)[:8]
        raise ScheduleError(
            f"tensorize: no intrinsic '{name}'",
            mend=f"one of {', '.join(near)}" if near else "register_intrin",
        )
    return _REGISTRY[name]


def registered_intrins() -> tuple[TensorIntrin, ...]:
    """All intrinsics, by name."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def machine_of(call: str) -> str | None:
    """The machine of an LLVM intrinsic; None for those that every machine has."""
    return MACHINES.get(call.split(".")[1])


def features_for(call: str) -> frozenset[str] | None:
    """The CPU features that an LLVM intrinsic needs: those common to all registered intrinsics that
    call it. None where none calls it."""
    machine = machine_of(call)
    asked = [i.features for i in _REGISTRY.values() if call in i.calls]
    if not asked:
        return None
    if machine is None:
        return frozenset()
    return frozenset.intersection(*(f.get(machine, frozenset()) for f in asked))


def nearest_calls(call: str) -> list[str]:
    """Known intrinsics of LLVM with names like this one's."""
    return difflib.get_close_matches(call, {c for i in _REGISTRY.values() for c in i.calls}, 3)
