"""Kernels to LLVM modules, and LLVM modules to optimised code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir as ll

from mlc_targets import Target
from mlc_targets.object_format import ALIGNMENT, ParamMap, SignatureMap

from ..arith import simplify_expr
from ..errors import CodegenError
from ..ir import SCALARS, Buffer, Dim, Expr, Var, const, substitute
from ..ir.nodes import dim
from ..lower import Kernel
from .llvm import emit_kernel
from .merge import KERNEL
from .signature import bounds_of, left_out_of, most, scalars_of, scratch_layout
from .tasks import task_range, tasks
from .types import forget_constants


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A compiled kernel without its name: an ELF object with the function KERNEL, and its metadata
    (mlc_abi.h). Kernels that share a function have one object; the function of each is KERNEL with
    its `number`."""

    code: bytes
    signature: SignatureMap
    number: int | None = None


def compile_kernel(kernel: Kernel, target: Target) -> KernelObject:
    """The kernel's object; identical bytes for identical loops. Raises CodegenError."""
    described = signature(kernel)
    module = llvm_module("", target)
    emit_kernel(module, kernel, target, KERNEL)
    forget_constants()
    with optimized(str(module), target) as (machine, code):
        return KernelObject(bytes(machine.emit_object(code)), described)


def compile_shared(
    kernel: Kernel, buffers: Sequence[Sequence[Buffer]], target: Target
) -> tuple[KernelObject, ...]:
    """The kernels that share a function (ir/outlines.py, ir/terms.py), each with its own inputs and
    outputs. Raises CodegenError."""
    described = [_own_signature(kernel, number, own) for number, own in enumerate(buffers)]
    module = llvm_module("", target)
    emit_kernel(module, kernel, target, KERNEL)
    forget_constants()
    with optimized(str(module), target) as (machine, code):
        whole = bytes(machine.emit_object(code))
    return tuple(KernelObject(whole, said, number) for number, said in enumerate(described))


def _own_signature(kernel: Kernel, number: int, own: Sequence[Buffer]) -> SignatureMap:
    given = kernel.body.attrs[SCALARS][number]
    scalars = {v: const(given[v.name], v.dtype) for v in scalars_of(kernel)}
    found = task_range(kernel)
    count: Expr = const(1)
    if found is not None:
        count = simplify_expr(substitute(found.loop.extent, scalars), {})
    left_out = left_out_of(kernel, number)
    shared = [p for p in kernel.body.buffers if p.name not in left_out]
    outputs = tuple(
        mine.name for mine, p in zip(own, shared, strict=True) if p.name in kernel.outputs
    )
    alone = replace(kernel, params=tuple(own), outputs=outputs)
    return {
        "params": [_param(alone, p) for p in own],
        "scalars": [],
        "tasks": _extent(dim(count)),
        "workspace": scratch_layout(kernel)[1],
    }


def assembly_of(kernel: Kernel, target: Target) -> str:
    """The kernel as assembly: the instructions that compile_kernel makes. Raises CodegenError."""
    module = llvm_module("", target)
    emit_kernel(module, kernel, target, kernel.name)
    forget_constants()
    with optimized(str(module), target) as (machine, code):
        return str(machine.emit_assembly(code))


@cache
def empty_object(target: Target) -> bytes:
    """The object of a module without kernels."""
    with optimized(str(llvm_module("", target)), target) as (machine, code):
        return bytes(machine.emit_object(code))


def llvm_module(name: str, target: Target, kernels: Iterable[Kernel] = ()) -> ll.Module:
    """A module of kernels by their names, before optimisation."""
    module = ll.Module(name, context=ll.Context())
    module.triple = target.mtriple
    for kernel in kernels:
        emit_kernel(module, kernel, target, kernel.name)
    return module


@contextmanager
def optimized(text: str, target: Target) -> Iterator[tuple[Any, Any]]:
    """(target machine, optimised module) for LLVM IR as text. Leaving the context frees them, with
    all types and constants that LLVM made for them."""
    _initialize()
    machine = llvm.Target.from_triple(target.mtriple).create_target_machine(
        cpu=target.llvm_cpu,
        features=target.llvm_features,
        opt=target.opt_level,
        reloc="pic",  # links into any program, and costs kernels nothing
        codemodel="small",
    )
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module, machine:
        module.verify()
        module.data_layout = str(machine.target_data)
        _optimize(module, machine, target)
        yield machine, module


def _optimize(module: Any, machine: Any, target: Target) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=target.opt_level)
    options.slp_vectorization = False
    options.loop_unrolling = False  # schedules say what is unrolled
    passes = llvm.create_pass_builder(machine, options)
    # LLVM's own pipeline would optimise a body before it is inlined, and again after that.
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    for manager in (inlining, passes.getModulePassManager()):
        manager.run(module, passes)
        # Otherwise the passes' memory, half a megabyte and more, would never be freed: the manager
        # inherits two _dispose methods, and llvmlite calls the one that does nothing.
        for kind in type(manager).__mro__:
            if (dispose := vars(kind).get("_dispose")) is not None:
                dispose(manager)
        manager.detach()


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def signature(kernel: Kernel) -> SignatureMap:
    """A kernel's metadata without its name. Raises CodegenError."""
    made: SignatureMap = {
        "params": [_param(kernel, p) for p in kernel.params if isinstance(p, Buffer)],
        "scalars": [v.name for v in scalars_of(kernel)],
        "tasks": _extent(tasks(kernel)),
        "workspace": scratch_layout(kernel)[1],
    }
    if bounds := bounds_of(kernel):
        made["most"] = list(bounds)
    return made


def _param(kernel: Kernel, p: Buffer) -> ParamMap:
    made: ParamMap = {
        "name": p.name,
        "dtype": p.dtype,
        "shape": [_extent(most(kernel, n)) for n in p.shape],
        "output": p.name in kernel.outputs,
    }
    if p.alignment < ALIGNMENT:
        made["align"] = p.alignment
    return made


def _extent(n: Dim) -> int | str:
    if isinstance(n, int):
        return n
    if isinstance(n, Var):
        return n.name
    raise CodegenError(f"a parameter's dimension is '{n}': a number or one variable is needed")
