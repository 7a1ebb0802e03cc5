"""`build` and `lower`: a PrimFunc, a schedule or a module becomes a library for a target, or
loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, overload

from mlc_targets import Target

from ..codegen import Library, compile_kernels
from ..errors import LowerError
from ..ir import IRModule, PrimFunc, Var, with_fields
from ..lower import Kernel, simple_loops
from ..lower import lower as lower_function
from ..ops.cpu import default_schedule
from ..schedule import IS_SCHEDULED, Schedule
from ..schedule.stages import default_args, stage_program
from ..te import StageSchedule, Tensor, create_prim_func
from .linked import FileName, linked_objects

Buildable = PrimFunc | Schedule | StageSchedule | IRModule | Sequence[Tensor | Var]


def build(
    program: Buildable,
    args: Sequence[Tensor | Var] | None = None,
    target: Target | str | None = None,
    name: str | None = None,
    link: Sequence[FileName] = (),
) -> Library:
    """Compiles loops for a target (the one in scope, or this machine, when none is given).

    program: a PrimFunc, a Schedule, an IRModule of PrimFuncs, a schedule of te.create_schedule, or
    tensor expressions. args: the parameters; of a te schedule by default its inputs, then its
    outputs. A function without a schedule gets the target's default. link: object and C files with
    the functions that te.call_extern calls.
    Raises LowerError, ScheduleError, CodegenError, TargetError.
    """
    to = Target(target) if target is not None else (Target.current() or Target("host"))
    if isinstance(program, StageSchedule) and not program.is_scheduled:
        program, args = args or default_args(program), None
    funcs = _functions(program, args, name)
    scheduled = [f if IS_SCHEDULED in f.attrs else default_schedule(f, to) for f in funcs]
    kernels = [lower_function(f, to) for f in scheduled]
    linked = linked_objects(link, to)
    return replace(compile_kernels(name or funcs[0].name, kernels, to), linked=linked)


@overload
def lower(
    program: Buildable,
    args: Sequence[Tensor | Var] | None = None,
    *,
    simple_mode: Literal[True],
    name: str | None = None,
) -> PrimFunc: ...


@overload
def lower(
    program: Buildable,
    args: Sequence[Tensor | Var] | None = None,
    *,
    simple_mode: Literal[False] = False,
    name: str | None = None,
) -> Kernel: ...


def lower(
    program: Buildable,
    args: Sequence[Tensor | Var] | None = None,
    *,
    simple_mode: bool = False,
    name: str | None = None,
) -> PrimFunc | Kernel:
    """The flat loops of one scheduled function; in simple_mode, loops for people to read (print
    them). `build` takes the same program and args. Raises LowerError, ScheduleError."""
    funcs = _functions(program, args, name)
    if len(funcs) > 1:
        raise LowerError(
            "lower: the module holds several functions",
            where=", ".join(f.name for f in funcs),
            mend="one of them",
        )
    if not simple_mode:
        return lower_function(funcs[0])
    loops = simple_loops(funcs[0])
    return with_fields(loops, attrs={k: v for k, v in loops.attrs.items() if k != IS_SCHEDULED})


def _functions(
    program: Buildable, args: Sequence[Tensor | Var] | None, name: str | None
) -> list[PrimFunc]:
    match program:
        case StageSchedule():
            return [stage_program(program, args, name or "main")]
        case Schedule():
            funcs = [program.func]
        case PrimFunc():
            funcs = [program]
        case IRModule():
            funcs = [f for f in program.functions.values() if isinstance(f, PrimFunc)]
        case _:
            return [create_prim_func(list(args if args is not None else program), name or "main")]
    if not funcs:
        raise LowerError("the module holds no PrimFunc", mend="mlc.compile for a graph")
    return [with_fields(funcs[0], name=name)] if name and len(funcs) == 1 else funcs
