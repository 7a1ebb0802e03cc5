"""TE's stages on the engine: their recorded calls (te/stage.py) become calls of primitives.

Consumers come first. A stage computed at an axis of another gets loops over what one iteration
needs, in the order of its axes; calls on its axes apply to these loops. An axis of which one
iteration needs a single element has no loop, and calls on it are dropped. A reduction's init goes
in front of the outermost loop that reduces. Kinds of loops come last, when all is in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import ScheduleError
from ..ir import Buffer, Const, IterVar, PrimFunc, Var, replace_buffers
from ..ir.pragmas import DOUBLE_BUFFER, PREFETCH
from ..te import ComputeOp, ExternOp, PlaceholderOp, Stage, StageSchedule, Tensor, create_prim_func
from ..te.program import topological
from ..te.stage import Fuse, Mark, Pragma, Prefetch, Reorder, Split, Tensorize
from ..te.stage_schedule import outputs_of
from ..te.tensor_intrin import DeclaredIntrin
from .declared import Parts, registered_parts
from .schedule import Schedule
from .tree import refuse, vars_in


def stage_program(
    s: StageSchedule, args: Sequence[Tensor | Var] | None = None, name: str = "main"
) -> PrimFunc:
    """The scheduled function of args: inputs and outputs, in the order of passing. Without args,
    the inputs in the order met, then the outputs.

    Raises ScheduleError for what the engine refuses, naming the stage and the user's line.
    """
    given = default_args(s) if args is None else list(args)
    named = {a.op for a in given if isinstance(a, Tensor)}
    for output in s.outputs:
        if not any(s[op].op is output for op in named if op in s):
            raise ScheduleError(
                f"lower: output '{output.name}' of the schedule is not among the arguments",
                mend=f"add '{output.name}' to them",
            )
    tensors, stages = _current(s, given)
    func = create_prim_func(tensors, name)
    names = Schedule(func).get_blocks()
    called = {t: p.name for t, p in zip(given, func.params, strict=True) if isinstance(t, Tensor)}
    return _Replay(s, func, dict(zip(stages, names, strict=True)), called).func


def default_args(s: StageSchedule) -> list[Tensor | Var]:
    """The inputs of a schedule in the order met, then its outputs."""
    tensors = topological([t for op in s.outputs for t in outputs_of(op)])
    inputs = [t for t in tensors if isinstance(t.op, PlaceholderOp)]
    return [*inputs, *(t for t in tensors if t.op in s.outputs)]


def _current(
    s: StageSchedule, args: Sequence[Tensor | Var]
) -> tuple[list[Tensor | Var], list[Stage]]:
    """(args as tensors of what their stages compute now, the stages that they need in the order
    of their blocks)."""
    made: dict[Tensor, Tensor] = {}
    ops: dict[Stage, ComputeOp | ExternOp] = {}

    def visit(tensor: Tensor) -> Tensor:
        stage = s[tensor] if tensor in s else None
        if tensor in made or stage is None or isinstance(stage.op, PlaceholderOp):
            return made.setdefault(tensor, tensor)
        if stage not in ops:
            sources = {t: visit(t) for t in stage.op.input_tensors}
            moved: dict[Buffer, Buffer] = {t: to for t, to in sources.items() if t is not to}
            ops[stage] = _reading(stage.op, moved)
        op = ops[stage]
        made[tensor] = Tensor(tensor.name, tensor.shape, tensor.dtype, op, tensor.output)
        return made[tensor]

    tensors = [visit(a) if isinstance(a, Tensor) else a for a in args]
    order = topological([t for t in tensors if isinstance(t, Tensor)])
    of = {op: stage for stage, op in ops.items()}
    return tensors, [of[op] for op in dict.fromkeys(t.op for t in order) if op in of]


def _reading(op: ComputeOp | ExternOp, moved: dict[Buffer, Buffer]) -> ComputeOp | ExternOp:
    """The operation with other tensors in the places of some that it reads."""
    match op:
        case ExternOp(name, inputs, places, body):
            others = tuple(moved.get(t, t) for t in inputs)
            tensors = tuple(t for t in others if isinstance(t, Tensor))
            return ExternOp(name, tensors, places, replace_buffers(body, moved))
        case ComputeOp(name, axis, bodies, attrs):
            return ComputeOp(name, axis, tuple(replace_buffers(e, moved) for e in bodies), attrs)


KINDS: dict[str, Callable[[Schedule, str], None]] = {
    "vectorized": Schedule.vectorize,
    "unrolled": Schedule.unroll,
    "parallel": Schedule.parallel,
}


class _Replay:
    """The engine's schedule, the block of each stage, the name of each argument, and the loop of
    each axis that has one."""

    def __init__(
        self,
        s: StageSchedule,
        func: PrimFunc,
        blocks: dict[Stage, str],
        called: dict[Tensor, str],
    ) -> None:
        self.s = s
        self.sch = Schedule(func)
        self.blocks = blocks
        self.called = called
        self.loops: dict[IterVar, str | None] = {}
        stages = [stage for stage in s.stages if stage in blocks]
        for stage in stages:
            if stage.scope != "global":
                with _blamed(stage, stage.scope_at):
                    self.sch.set_scope(blocks[stage], 0, stage.scope)
        for stage in stages:
            if stage.place.kind == "inline":
                with _blamed(stage, stage.place.at):
                    if stage.aligned or stage.doubled:
                        what = "storage_align" if stage.aligned else "double_buffer"
                        refuse(what, f"stage '{stage.name}' has no buffer: it is inlined")
                    self.sch.compute_inline(blocks[stage])
        stages = [stage for stage in reversed(stages) if stage.place.kind != "inline"]
        for stage in stages:
            self.attach(stage)
            self.shape(stage)
        inits = {stage: self.decompose(stage) for stage in stages}
        for stage in stages:
            self.mark(stage, inits[stage])
            self.ask(stage)
        self.func = self.sch.func

    def attach(self, stage: Stage) -> None:
        """Puts the stage where it is computed, and notes the loops of its axes there."""
        block, depth = self.blocks[stage], 0
        with _blamed(stage, stage.place.at):
            at = self.position(stage)
            if at is not None:
                self.sch.compute_at(block, at)
                depth = [str(n) for n in self.sch.get_loops(block)].index(at) + 1
        own = {self.sch.loop(n).var for n in self.sch.get_loops(block)[depth:]}
        axes = (*stage.op.axis, *stage.op.reduce_axis)
        for axis, i in zip(axes, self.sch.block(block).iters, strict=False):
            found = vars_in(i.binding) & own
            self.loops[axis] = found.pop().name if found else None

    def position(self, stage: Stage) -> str | None:
        """The loop that the stage is computed in: the loop of its parent's axis or, where the axis
        has none, the next loop outside."""
        place = stage.place
        if place.parent is None or place.axis is None:
            return None
        parent = place.parent
        if parent not in self.blocks or parent.place.kind == "inline":
            refuse("compute_at", f"stage '{parent.name}' has no loops: it is inlined")
        state = parent.axis_state(place.axis)
        if state:
            refuse(
                "compute_at",
                f"axis '{place.axis.var.name}' of stage '{parent.name}' {state} since",
                mend="compute_at one of the axes that the stage has at last",
            )
        leaves = parent.leaf_iter_vars
        outside = leaves[: leaves.index(place.axis) + 1]
        loops = [loop for axis in outside if (loop := self.loops[axis]) is not None]
        return loops[-1] if loops else self.position(parent)

    def shape(self, stage: Stage) -> None:
        """Splits, fuses and reorders, as they were asked for."""
        for step in stage.relations:
            with _blamed(stage, step.at):
                match step:
                    case Split():
                        self.split(step)
                    case Fuse(parts, fused):
                        names = [n for axis in parts if (n := self.loops[axis]) is not None]
                        whole = self.sch.fuse(*names) if len(names) > 1 else (*names, None)[0]
                        self.loops[fused] = whole
                    case Reorder(order):
                        names = [n for axis in order if (n := self.loops[axis]) is not None]
                        self.sch.reorder(*names)

    def split(self, step: Split) -> None:
        loop = self.loops[step.parent]
        if loop is None:
            self.loops[step.outer] = self.loops[step.inner] = None
            return
        extent = self.sch.loop(loop).extent
        turns = step.factor or step.nparts or 1
        if isinstance(extent, Const):
            turns = min(turns, int(extent))
        factors = [None, turns] if step.nparts is None else [turns, None]
        self.loops[step.outer], self.loops[step.inner] = self.sch.split(
            loop, factors, disable_predication=step.disable_predication
        )

    def decompose(self, stage: Stage) -> str | None:
        """Puts a reduction's init in front of the loops that reduce, and gives its block. None
        where the init stays in the block: for an intrinsic over all these loops, and where the
        engine cannot prove that these loops run it once."""
        for axis in stage.leaf_iter_vars:
            if any(isinstance(m, Tensorize) and m.axis is axis for m in stage.marks):
                return None
            loop = self.loops[axis]
            if axis.kind == "reduce" and loop is not None:
                try:
                    return self.sch.decompose_reduction(self.blocks[stage], loop)
                except ScheduleError:
                    return None
        return None

    def mark(self, stage: Stage, init: str | None) -> None:
        """Kinds of loops, annotations, intrinsics. The init's loops have the kinds of the loops
        that they copy."""
        for mark in stage.marks:
            loop = self.loops[mark.axis]
            if loop is None:
                continue
            with _blamed(stage, mark.at):
                match mark:
                    case Mark(_, kind):
                        for name in (loop, *self.copies(loop, init)):
                            KINDS[kind](self.sch, name)
                    case Pragma(_, key, value):
                        self.sch.annotate(loop, f"pragma_{key}", value)
                    case Prefetch(_, tensor, offset):
                        ahead = self.sch.loop(loop).annotations.get(PREFETCH, ())
                        rows = [*ahead, [self.buffer(tensor), offset]]
                        self.sch.annotate(loop, PREFETCH, rows)
                    case Tensorize(_, str(intrin)):
                        self.blocks[stage] = self.sch.tensorize(loop, intrin)
                    case Tensorize(_, DeclaredIntrin() as intrin):
                        self.declared(stage, loop, init, registered_parts(intrin))

    def declared(self, stage: Stage, loop: str, init: str | None, parts: Parts) -> None:
        """A declared intrinsic: its whole where the loop holds all of the reduction, else its
        update, with its reset before."""
        block = self.sch.block(self.blocks[stage])
        whole = block.init is not None or all(i.kind == "spatial" for i in block.iters)
        name = parts.whole if whole else parts.update
        if not name:
            refuse(
                "tensorize",
                "the reduction goes on outside of the intrinsic, which says only what the whole is"
                if not whole
                else "the intrinsic does not say what the whole is",
                mend="a function that gives three statements: the whole, setting to 0, adding to",
            )
        self.blocks[stage] = self.sch.tensorize(loop, name)
        for copy in self.copies(loop, init) if parts.reset else ():
            self.sch.tensorize(copy, parts.reset)

    def ask(self, stage: Stage) -> None:
        """Requests the alignment and doubling of the stage's buffer."""
        block = self.blocks[stage]
        for align in stage.aligned:
            with _blamed(stage, align.at):
                self.sch.storage_align(block, 0, align.dimension, align.factor, align.offset)
        if stage.doubled:
            with _blamed(stage, stage.doubled):
                self.sch.annotate(block, DOUBLE_BUFFER, 0)

    def buffer(self, tensor: Tensor) -> str:
        """The name of a tensor's buffer."""
        if tensor in self.called:
            return self.called[tensor]
        return self.sch.block(self.blocks[self.s[tensor]]).writes[tensor.output].buffer.name

    def copies(self, loop: str, init: str | None) -> list[str]:
        """The init's loop that is a copy of this one, by its name."""
        if init is None:
            return []
        name = re.compile(re.escape(loop) + r"_init(_\d+)?")
        return [n for n in self.sch.get_loops(init) if name.fullmatch(n)]


@contextmanager
def _blamed(stage: Stage, at: str) -> Iterator[None]:
    """Adds this stage and the user's line `at` to what the engine refuses."""
    try:
        yield
    except ScheduleError as error:
        where = f"{at}\nstage '{stage.name}'" if at else f"stage '{stage.name}'"
        where = f"{where}\n{error.where}" if error.where else where
        raise ScheduleError(error.what, where=where, mend=error.mend) from None
