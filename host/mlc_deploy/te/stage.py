"""A stage: one operation of a schedule of tensor expressions, with the calls on its loops.

Calls are only recorded; `schedule.stages` replays them on blocks. Mistakes that show at the call
are refused at once.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..errors import ScheduleError
from ..ir import Expr, IterVar, Var, expr
from ..ir.nodes import ForKind, Scope
from ..ir.pragmas import PRAGMA, align_defect, defect
from .tensor import Axes, Operation, PlaceholderOp, Tensor
from .tensor_intrin import DeclaredIntrin, Intrinsic
from .threads import ThreadAxis, no_thread

if TYPE_CHECKING:
    from .stage_schedule import StageSchedule


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """parent => outer, inner; either inner has `factor` iterations, or outer has `nparts`."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None
    disable_predication: bool
    at: str  # the user's line


@dataclass(frozen=True, slots=True, eq=False)
class Fuse:
    parts: tuple[IterVar, ...]
    fused: IterVar
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Reorder:
    order: tuple[IterVar, ...]
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """How an axis runs."""

    axis: IterVar
    kind: ForKind
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Pragma:
    axis: IterVar
    key: str
    value: Any
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Tensorize:
    axis: IterVar
    intrin: str | DeclaredIntrin
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch:
    """Each iteration of the axis prefetches what the iteration `offset` later reads of the
    tensor."""

    axis: IterVar
    tensor: Tensor
    offset: int
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Align:
    """The stride of a dimension is a multiple of `factor` plus `offset`, in elements."""

    dimension: int
    factor: int
    offset: int
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a stage is computed: at an axis of another stage, by itself, or in its consumers'
    expressions."""

    kind: Literal["root", "inline", "at"]
    parent: Stage | None = None
    axis: IterVar | None = None
    at: str = ""


class Stage:
    """One operation and the calls on its loops. `op` is what it computes now."""

    def __init__(self, schedule: StageSchedule, op: Operation) -> None:
        self.schedule = schedule
        self.scope: Scope = "global"
        self.scope_at = ""
        self.place = Place("root")
        self.reset(op)

    def reset(self, op: Operation) -> None:
        """Gives it another operation, none of whose loops is scheduled."""
        self.op = op
        self.leaf_iter_vars = Axes((*op.axis, *op.reduce_axis))
        self.relations: list[Split | Fuse | Reorder] = []
        self.marks: list[Mark | Pragma | Prefetch | Tensorize] = []
        self.aligned: list[Align] = []
        self.doubled = ""  # the user's line that doubled the buffer

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def is_scheduled(self) -> bool:
        moved = self.place.kind != "root" or self.scope != "global"
        return moved or bool(self.relations or self.marks or self.aligned or self.doubled)

    def __repr__(self) -> str:
        return f"Stage({self.name!r})"

    # ------------------------------------------------------------------------------------ loops

    def split(
        self,
        parent: IterVar,
        factor: int | None = None,
        nparts: int | None = None,
        disable_predication: int = False,
    ) -> tuple[IterVar, IterVar]:
        """(outer, inner) in place of an axis; inner has `factor` iterations, or outer `nparts`.
        disable_predication: without a guard, since the caller knows that all are needed."""
        self._require_leaf("split", parent)
        self._require_unmarked("split", parent)
        if (factor is None) == (nparts is None):
            self.refuse("split", f"axis '{parent.var.name}' needs either factor or nparts")
        given = factor if factor is not None else nparts
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            self.refuse(
                "split", f"{given} is not a number of iterations for axis '{parent.var.name}'"
            )
        rest = (parent.extent + (given - 1)) // given
        sizes = (rest, expr(given)) if factor is not None else (expr(given), rest)
        outer, inner = (
            made_axis(f"{parent.var.name}_{n}", size, parent) for n, size in enumerate(sizes)
        )
        self.relations.append(
            Split(parent, outer, inner, factor, nparts, bool(disable_predication), caller())
        )
        self._replace((parent,), (outer, inner))
        return outer, inner

    def fuse(self, *axes: IterVar) -> IterVar:
        """One axis in place of axes that stand next to each other, outermost first."""
        if not axes:
            self.refuse("fuse", "no axis is given")
        for axis in axes:
            self._require_leaf("fuse", axis)
            self._require_unmarked("fuse", axis)
        if len(axes) == 1:
            return axes[0]
        first = self.leaf_iter_vars.index(axes[0])
        following = self.leaf_iter_vars[first : first + len(axes)]
        if len(following) < len(axes) or not all(map(operator.is_, following, axes)):
            self.refuse(
                "fuse",
                f"axes {_names(axes)} do not stand next to each other in this order",
                "reorder them first",
            )
        if len({axis.kind for axis in axes}) > 1:
            self.refuse("fuse", f"axes {_names(axes)} are of results and of the reduction")
        extent = axes[0].extent
        for axis in axes[1:]:
            extent = extent * axis.extent
        fused = made_axis("_".join([*(a.var.name for a in axes), "fused"]), extent, axes[0])
        self.relations.append(Fuse(axes, fused, caller()))
        self._replace(axes, (fused,))
        return fused

    def reorder(self, *axes: IterVar) -> None:
        """The axes in this order, outermost first; axes between them stay where they are."""
        for axis in axes:
            self._require_leaf("reorder", axis)
        if len(set(axes)) != len(axes):
            self.refuse("reorder", f"an axis occurs twice in {_names(axes)}")
        self.relations.append(Reorder(axes, caller()))
        moved, following = set(axes), iter(axes)
        self.leaf_iter_vars = Axes(
            next(following) if axis in moved else axis for axis in self.leaf_iter_vars
        )

    def tile(
        self, x_parent: IterVar, y_parent: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """(x_outer, y_outer, x_inner, y_inner) in this order, in place of two axes."""
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def vectorize(self, axis: IterVar) -> None:
        """The axis' iterations are the lanes of vectors."""
        self._mark("vectorize", axis, "vectorized")

    def unroll(self, axis: IterVar) -> None:
        """The axis' iterations are written out."""
        self._mark("unroll", axis, "unrolled")

    def parallel(self, axis: IterVar) -> None:
        """The axis' iterations may run at once, on several threads."""
        self._mark("parallel", axis, "parallel")

    def bind(self, axis: IterVar, thread: ThreadAxis) -> NoReturn:
        """Refused: a CPU has no threads of a GPU."""
        self._require_leaf("bind", axis)
        self.refuse("bind", *no_thread(thread))

    def pragma(self, axis: IterVar, key: str, value: Any = True) -> None:
        """Annotates the loop of an axis with `pragma_<key>`, for it and the loops inside:
        auto_unroll_max_step (a number of statements), unroll_explicit, debug_skip_region."""
        self._require_leaf("pragma", axis)
        why, mend = defect(f"{PRAGMA}{key}", value)
        if why:
            self.refuse("pragma", why, mend)
        self.marks.append(Pragma(axis, key, value, caller()))

    def prefetch(self, tensor: Tensor, axis: IterVar, offset: int) -> None:
        """Each iteration of the axis prefetches what the iteration `offset` later reads of a
        tensor."""
        self._require_leaf("prefetch", axis)
        if not isinstance(tensor, Tensor) or tensor not in self.op.input_tensors:
            name = getattr(tensor, "name", repr(tensor))
            reads = ", ".join(t.name for t in self.op.input_tensors)
            self.refuse("prefetch", f"stage '{self.name}' does not read '{name}'", reads)
        if isinstance(offset, bool) or not isinstance(offset, int):
            self.refuse("prefetch", f"{offset!r} is not a number of iterations")
        self.marks.append(Prefetch(axis, tensor, offset, caller()))

    def tensorize(self, axis: IterVar, intrin: Intrinsic) -> None:
        """The loops from this axis inwards become one tensor intrinsic: a registered name, a
        declaration of te.decl_tensor_intrin, or a function that returns one."""
        self._require_leaf("tensorize", axis)
        declared = intrin if isinstance(intrin, (str, DeclaredIntrin)) else None
        if declared is None and callable(intrin):
            declared = intrin()
        if not isinstance(declared, (str, DeclaredIntrin)):
            self.refuse(
                "tensorize",
                f"{intrin!r} declares no intrinsic",
                "te.decl_tensor_intrin(op, function), or a function that returns it",
            )
        self.marks.append(Tensorize(axis, declared, caller()))

    # ---------------------------------------------------------------------------------- buffers

    def storage_align(self, axis: IterVar, factor: int, offset: int) -> None:
        """The stride of the axis' dimension of its scratch buffer is a multiple of `factor` plus
        `offset`, in elements: rows then begin at vectors, or in different cache sets."""
        self._require_movable("storage_align")
        if axis not in self.op.axis:
            self.refuse(
                "storage_align",
                f"axis '{axis.var.name}' is not a dimension of '{self.name}'",
                "op.axis",
            )
        if why := align_defect(factor, offset):
            self.refuse("storage_align", why)
        self.aligned.append(Align(self.op.axis.index(axis), factor, offset, caller()))

    def double_buffer(self) -> None:
        """Doubles its buffer: each iteration of the loop that it is computed at fills the half for
        the next iteration before it uses its own."""
        self._require_movable("double_buffer")
        self.doubled = caller()

    # ------------------------------------------------------------------------------------ places

    def compute_at(self, parent: Stage, axis: IterVar) -> None:
        """Each iteration of the parent's axis computes what that iteration needs of this stage."""
        self._require_movable("compute_at")
        if parent.schedule is not self.schedule or parent is self:
            self.refuse(
                "compute_at", f"stage '{parent.name}' is not another stage of this schedule"
            )
        order = self.schedule.stages
        if order.index(parent) < order.index(self):
            self.refuse("compute_at", f"stage '{parent.name}' reads nothing of stage '{self.name}'")
        parent._require_leaf("compute_at", axis)
        self.place = Place("at", parent, axis, caller())

    def compute_root(self) -> None:
        """Computes it by itself, before its consumers (the default)."""
        self._require_computed("compute_root")
        self.place = Place("root")

    def compute_inline(self) -> None:
        """Puts its expression into its consumers; it has no loops."""
        self._require_movable("compute_inline")
        if self.op.reduce_axis:
            self.refuse("compute_inline", f"stage '{self.name}' is a reduction")
        self.place = Place("inline", at=caller())

    def set_scope(self, scope: Scope) -> None:
        """Where its result is kept: "global" (the arena) or "local" (stack and registers)."""
        self._require_movable("set_scope")
        self.scope, self.scope_at = known_scope("set_scope", scope), caller()

    # ------------------------------------------------------------------------------------ checks

    def refuse(self, primitive: str, why: str, mend: str = "") -> NoReturn:
        """Raises ScheduleError that names the stage, its axes and the user's line."""
        axes = ", ".join(axis.var.name for axis in self.leaf_iter_vars) or "none"
        raise ScheduleError(
            f"{primitive}: {why}", where=f"{caller()}\nstage '{self.name}': axes {axes}", mend=mend
        )

    def axis_state(self, axis: IterVar) -> str:
        """Why an axis is not a loop of this stage, as the end of a sentence; "" where it is one."""
        if axis in self.leaf_iter_vars:
            return ""
        for step in self.relations:
            match step:
                case Split(parent, outer, inner) if parent is axis:
                    return f"was split into {_names((outer, inner))}"
                case Fuse(parts, fused) if axis in Axes(parts):
                    return f"was fused into {_names((fused,))}"
        for stage in self.schedule.stages:
            if stage is not self and axis in stage.leaf_iter_vars:
                return f"belongs to stage '{stage.name}'"
        return f"is not an axis of stage '{self.name}'"

    def _require_leaf(self, primitive: str, axis: IterVar) -> None:
        if not isinstance(axis, IterVar):
            raise TypeError(f"{primitive}: {axis!r} is not an axis")
        self._require_computed(primitive)
        state = self.axis_state(axis)
        if state:
            self.refuse(primitive, f"axis '{axis.var.name}' {state}")

    def _require_unmarked(self, primitive: str, axis: IterVar) -> None:
        for mark in self.marks:
            if mark.axis is axis and isinstance(mark, Mark):
                self.refuse(
                    primitive,
                    f"axis '{axis.var.name}' is {mark.kind} already",
                    f"{primitive} it before it is made {mark.kind}",
                )

    def _require_computed(self, primitive: str) -> None:
        if isinstance(self.op, PlaceholderOp):
            self.refuse(primitive, f"'{self.name}' is an input; it has no loops")

    def _require_movable(self, primitive: str) -> None:
        self._require_computed(primitive)
        if self.op in self.schedule.outputs:
            self.refuse(
                primitive, f"'{self.name}' is an output of the schedule; it is computed at the root"
            )

    def _mark(self, primitive: str, axis: IterVar, kind: ForKind) -> None:
        self._require_leaf(primitive, axis)
        self._require_unmarked(primitive, axis)
        if axis.kind == "reduce" and kind != "unrolled":
            self.refuse(
                primitive,
                f"axis '{axis.var.name}' carries the reduction of stage '{self.name}'",
                f"{primitive} an axis of results, or rfactor the reduction first",
            )
        self.marks.append(Mark(axis, kind, caller()))

    def _replace(self, old: Sequence[IterVar], made: Sequence[IterVar]) -> None:
        first = self.leaf_iter_vars.index(old[0])
        after = self.leaf_iter_vars[first + len(old) :]
        self.leaf_iter_vars = Axes((*self.leaf_iter_vars[:first], *made, *after))


def made_axis(name: str, extent: Expr, like: IterVar) -> IterVar:
    """An axis of the kind and dtype of another."""
    variable = Var(name, like.var.dtype)
    return IterVar(variable, extent, like.kind, variable)


def known_scope(primitive: str, scope: str) -> Scope:
    match scope:
        case "global" | "local":
            return scope
    raise ScheduleError(
        f"{primitive}: no scope '{scope}'", where=caller(), mend='"global" or "local"'
    )


def caller() -> str:
    """The line of the program that called into this package's TE, as `file:line`."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__package__") == __package__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _names(axes: Sequence[IterVar]) -> str:
    return ", ".join(f"'{axis.var.name}'" for axis in axes)
