"""From fused calls to kernels: the source of each kernel, and its scheduled PrimFunc."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from mlc_targets import Target

from .. import te
from ..errors import LowerError
from ..ir import (
    IN_PLACE,
    MOST,
    SHORT_FLOATS,
    Buffer,
    IRModule,
    PrimFunc,
    const,
    structural_hash,
    with_fields,
)
from ..ir.names import LIBRARY_NAMES
from ..ir.rewrite import replace_buffers
from ..ops import TensorType, compute, operator
from ..ops.cpu import default_schedule, schedule_apart
from ..ops.plan import Plan
from ..ops.quantize import SHORT
from ..ops.strategy import ANCHORS, plain_plan
from ..schedule import IS_SCHEDULED, Schedule, Trace
from ..te.program import topological
from ..te.tensor import Operation
from .definition import Definition
from .extents import dims_in
from .fuse import fused, is_fusible
from .nodes import Binding, Call, CallFused, CallTIR, Constant, Function, Value, Var


@dataclass(frozen=True, eq=False)
class KernelSource:
    """Everything but the target that decides a kernel: a fused function, or a PrimFunc.

    `in_place`: numbers of the parameters whose memory the output may take over. `alignments`: of
    all parameters, in bytes; empty if each is aligned to ALIGNMENT. `trace`: the schedule, if the
    target's strategies do not choose it. `scheduled`: the result of lower_kernel for the target, if
    already known.
    """

    name: str
    computes: Function | PrimFunc
    in_place: tuple[int, ...] = ()
    trace: Trace | None = None
    alignments: tuple[int, ...] = ()
    scheduled: PrimFunc | None = None

    @cached_property
    def digest(self) -> bytes:
        """Equal for kernels that compute the same, whatever their names."""
        match self.computes:
            case PrimFunc():
                text = structural_hash(self.computes)
            case Function():
                text = "\n".join(canonical(self.computes))
        trace = "" if self.trace is None else self.trace.dumps()
        aligned = self.alignments or ""
        whole = f"{text}\n{self.in_place}{trace}{aligned}"
        return hashlib.blake2b(whole.encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class Unscheduled:
    """A kernel before scheduling, with the plan of its anchor, if it has one. before: the blocks
    that compute the anchor's inputs."""

    func: PrimFunc
    target: Target
    plan: Plan | None = None
    before: tuple[str, ...] = ()

    def schedule(self, func: PrimFunc) -> PrimFunc:
        """The default schedule of `func`, or of another function with the same blocks. A scheduled
        function stays as it is."""
        if IS_SCHEDULED in func.attrs:
            return func
        if self.plan is None:
            return default_schedule(func, self.target, self.before)
        if self.before:
            sch = Schedule(func)
            for name in self.before:
                sch = schedule_apart(sch, name, self.target)
            func = sch.func
        return self.plan.schedule(func)


def canonical(function: Function, numbers_too: bool = True) -> Iterator[str]:
    """The function's lines with its variables numbered; single numbers are left out, unless
    `numbers_too`."""
    numbers: dict[Value, str] = {}

    def name(value: Value) -> str:
        if isinstance(value, Constant):
            told = numbers_too or value.value.size != 1
            return f"{value.type}{value.value.tobytes().hex() if told else ''}"
        return numbers.setdefault(value, f"v{len(numbers)}")

    yield ", ".join(f"{name(p)}: {p.type}" for p in function.params)
    if function.extents:
        yield ", ".join(f"{n} <= {most}" for n, most in function.extents)
    for binding in function.bindings:
        call = binding.call
        args, outputs = (", ".join(map(name, values)) for values in (call.args, binding.outputs))
        match call:
            case Call(op, _, attrs, plan):
                yield f"{outputs} = {op}({args}; {sorted(attrs.items())}) by {plan!r}"
            case CallTIR(definition=Definition(func)):
                yield f"{outputs} = {structural_hash(func)}({args})"
    yield ", ".join(map(name, function.outputs))


def kernel_source(binding: Binding, module: IRModule | None = None) -> KernelSource:
    """The source of a binding's kernel. Its parameters are the call's arguments."""
    match binding.call:
        case CallFused(function):
            name = function.name
            return KernelSource(f"{name}_op" if name in LIBRARY_NAMES else name, function)
        case CallTIR(func):
            found = None if module is None else module.functions.get(func)
            if not isinstance(found, PrimFunc):
                raise LowerError(f"the module has no PrimFunc '{func}'", where=str(binding))
            return KernelSource(func, found)
    raise LowerError("no kernel computes this call", where=str(binding))


def as_kernels(function: Function) -> tuple[Binding, ...]:
    """The bindings with every operator that needs a kernel in a CallFused, alone if not fused."""
    return tuple(
        fused([b]) if is_fusible(b) and isinstance(b.call, Call) else b for b in function.bindings
    )


def lower_kernel(source: KernelSource, target: Target) -> PrimFunc:
    """The scheduled PrimFunc of a kernel, with its inputs and then its outputs as parameters.
    Raises ScheduleError for a trace that does not apply to it."""
    if source.scheduled is not None:
        return source.scheduled
    begun = unscheduled(source, target)
    if source.trace is None:
        scheduled = begun.schedule(begun.func)
    else:
        sch = Schedule(begun.func)
        source.trace.apply(sch)
        scheduled = sch.func
    moved = _moved(scheduled, source)
    if moved:
        params = tuple(moved.get(p, p) if isinstance(p, Buffer) else p for p in scheduled.params)
        body = replace_buffers(scheduled.body, moved)
        scheduled = with_fields(scheduled, params=params, body=body)
    buffers = [scheduled.buffers[n].name for n in source.in_place]
    attrs = {**scheduled.attrs, IN_PLACE: tuple(buffers)} if buffers else scheduled.attrs
    if _is_short(source.computes):
        attrs = {**attrs, SHORT_FLOATS: True}
    return with_fields(scheduled, name=source.name, attrs=attrs)


def buffers_of(source: KernelSource, target: Target) -> tuple[Buffer, ...]:
    """The inputs and outputs of a kernel, as lower_kernel gives them, without scheduling it."""
    if source.scheduled is not None:
        return source.scheduled.buffers
    func = unscheduled(source, target).func
    moved = _moved(func, source)
    return tuple(moved.get(b, b) for b in func.buffers)


def _moved(func: PrimFunc, source: KernelSource) -> dict[Buffer, Buffer]:
    """The buffers whose data are less aligned than by default, as such."""
    given = zip(func.buffers, source.alignments, strict=False)
    return {b: b.replace(alignment=least) for b, least in given if least < b.alignment}


def _is_short(computes: Function | PrimFunc) -> bool:
    """Whether all floats that become bytes are known to fit in int16 (graph/sum_bounds.py)."""
    if not isinstance(computes, Function):
        return False
    calls = [b.call for b in computes.bindings if isinstance(b.call, Call)]
    rounded = [c for c in calls if c.op in ("requantize", "quantize", "round")]
    return bool(rounded) and all(c.attrs.get(SHORT) for c in rounded)


def unscheduled(source: KernelSource, target: Target) -> Unscheduled:
    """A kernel before it is scheduled."""
    match source.computes:
        case PrimFunc() as func:
            return Unscheduled(func, target)
        case Function() as function:
            begun = unscheduled_fused(function, target, source.name)
            if not function.extents:
                return begun
            dims = {v.name: v for v in dims_in(function)}
            params = (*(dims[name] for name, _ in function.extents), *begun.func.params)
            attrs = {**begun.func.attrs, MOST: dict(function.extents)}
            return replace(begun, func=with_fields(begun.func, params=params, attrs=attrs))


def lower_fused(function: Function, target: Target, name: str) -> PrimFunc:
    """A fused function, scheduled for the target."""
    begun = unscheduled_fused(function, target, name)
    return begun.schedule(begun.func)


def unscheduled_fused(function: Function, target: Target, name: str) -> Unscheduled:
    """The stages of all operators in order, before scheduling by the anchor's plan, or by default
    if there is none. An anchor without a plan gets one for plain data."""
    tensors: dict[Value, te.Tensor] = {
        p: te.placeholder(p.type.shape, p.type.dtype, p.name) for p in function.params
    }
    chosen: Plan | None = None
    before: set[Operation] = set()
    for binding in function.bindings:
        call = binding.call
        inputs = [tensors[a] if a in tensors else _scalar(a) for a in call.args]
        if isinstance(call, CallTIR) and call.definition is not None:
            tensors.update(zip(binding.outputs, call.definition.compute(inputs), strict=True))
            continue
        assert isinstance(call, Call), f"{binding} is not an operator's call"
        plan = call.plan
        if plan is None and operator(call.op).pattern in ANCHORS:
            types = [TensorType(t.shape, t.dtype) for t in inputs]
            plan = plain_plan(call.op, types, call.attrs, target)
        if operator(call.op).pattern == "anchor":
            before = {tensors[a].op for a in call.args if a in tensors}
        outputs = compute(call.op, inputs, call.attrs) if plan is None else plan.compute(inputs)
        chosen = plan or chosen
        tensors.update(zip(binding.outputs, outputs, strict=True))
    params = [*function.params, *(v for v in function.outputs if isinstance(v, Var))]
    made = [tensors[v] for v in params]
    func = te.create_prim_func(made, name)
    stages = dict.fromkeys(
        t.op for t in topological(made) if not isinstance(t.op, te.PlaceholderOp)
    )
    blocks = zip(Schedule(func).get_blocks(), stages, strict=True)
    return Unscheduled(func, target, chosen, tuple(b for b, stage in blocks if stage in before))


def _scalar(value: Value) -> te.Tensor:
    assert isinstance(value, Constant) and value.value.size == 1, f"{value} is not a scalar"
    number = const(value.value.item(), value.type.dtype)
    tensor: te.Tensor = te.compute(value.value.shape, lambda *_: number, name="scalar")
    return tensor
