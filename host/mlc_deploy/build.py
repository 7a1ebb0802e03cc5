"""`build`: from a PrimFunc, a schedule or a module of them to a library for a target."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_targets import Target

from .codegen import Library, compile_kernels
from .errors import LowerError
from .ir import Block, For, IRModule, PrimFunc, Var, statements, with_fields
from .ir.build import is_root
from .lower import lower
from .ops.cpu import default_schedule
from .schedule import Schedule
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
    kernels = [lower(f if is_scheduled(f) else default_schedule(f, to)) for f in funcs]
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


def is_scheduled(func: PrimFunc) -> bool:
    """Whether somebody has decided how the function's loops run.

    A function as te.create_prim_func makes it has serial loops, each of which is one iteration of
    the block inside, and nothing below its root but such nests.
    """
    for s in statements(func.body):
        if isinstance(s, For) and (s.kind != "serial" or s.annotations):
            return True
        if isinstance(s, Block) and not is_root(s):
            if any(not isinstance(i.binding, Var) for i in s.iters if i.kind == "spatial"):
                plain = [i for i in s.iters if str(i.extent) != "1"]
                if any(not isinstance(i.binding, Var) for i in plain):
                    return True
    return False
