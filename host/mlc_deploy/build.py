"""`build`: from a PrimFunc, a schedule or a module of them to a library for a target."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_targets import Target

from .codegen import Library, compile_kernels
from .errors import LowerError
from .ir import IRModule, PrimFunc, Var, with_fields
from .lower import lower
from .ops.cpu import default_schedule
from .schedule import IS_SCHEDULED, Schedule
from .te import Tensor, create_prim_func

Buildable = PrimFunc | Schedule | IRModule | Sequence[Tensor | Var]


def build(
    program: Buildable,
    args: Sequence[Tensor | Var] | None = None,
    target: Target | str | None = None,
    name: str | None = None,
) -> Library:
    """Compiles loops for a target (the one in scope, or this machine, when none is given).

    program: a PrimFunc, a Schedule, an IRModule of PrimFuncs, or tensor expressions (which args
    may also be). A function that carries no schedule gets the target's default. Raises LowerError,
    CodegenError, TargetError.
    """
    to = Target(target) if target is not None else (Target.current() or Target("host"))
    funcs = _functions(program, args, name)
    kernels = [lower(f if IS_SCHEDULED in f.attrs else default_schedule(f, to)) for f in funcs]
    return compile_kernels(name or funcs[0].name, kernels, to)


def _functions(
    program: Buildable, args: Sequence[Tensor | Var] | None, name: str | None
) -> list[PrimFunc]:
    match program:
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
