"""A program per tensor intrinsic, compiled in a process of its own: LLVM ends it where an
instruction cannot be selected.

    python -m tests.ops.intrinsic_programs FOLDER

writes NAME.o and NAME.s of every registered intrinsic, and prints each name before it begins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlc_deploy as mlc
from mlc_deploy.codegen import Library
from mlc_deploy.codegen.machine_code import optimized
from mlc_deploy.ir import (
    Block,
    Buffer,
    Load,
    PrimFunc,
    Store,
    Var,
    const,
    dtype_of,
    load,
    rebuild,
    with_fields,
)
from mlc_deploy.ops import OWN_INTRINS
from mlc_deploy.schedule import Schedule, TensorIntrin
from mlc_deploy.schedule.tree import refreshed
from mlc_targets import Target

TRIPLES = {
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "x86_64": "x86_64-linux-gnu",
}
ALIGNMENT = 64


def target_of(intrin: TensorIntrin) -> Target:
    """The plainest target that has what the intrinsic needs."""
    ((arch, features),) = intrin.features.items()
    added = set(features) if arch == "x86_64" else {*features, "neon"}
    if arch == "arm" and needs_v8(intrin):
        added.add("v8")
    return Target(
        f"llvm -mtriple={TRIPLES[arch]} -mattr={','.join(f'+{f}' for f in sorted(added))}"
    )


def needs_v8(intrin: TensorIntrin) -> bool:
    return any({"dotprod", "i8mm"} & features for features in intrin.features.values())


def program_of(intrin: TensorIntrin) -> PrimFunc:
    """The description with each parameter somewhere inside a larger buffer, rows apart where the
    description lets them be."""
    description = intrin.description
    places: dict[Buffer, tuple[Buffer, tuple[int, ...]]] = {}
    for b in description.buffers:
        loose = b.ndim == 1 or isinstance((b.strides or (1,))[0], Var)
        sizes = [int(n) for n in b.shape]  # type: ignore[arg-type]
        shift = [0] * b.ndim
        if loose:  # of more dimensions, how far apart the first one's elements are
            row = min(b.ndim - 1, 1)
            sizes[row], shift[row] = sizes[row] + 5, 3
        if loose and b.ndim > 1:
            sizes[0], shift[0] = sizes[0] + 1, 1
        places[b] = Buffer(b.name, (2, *sizes), b.dtype), (1, *shift)

    def visit(m: Any) -> Any:
        match m:
            case Load(b, indices):
                larger, at = places[b]
                return load(larger, (const(at[0]), *moved(indices, at)))
            case Store(b, indices, value):
                larger, at = places[b]
                return Store(larger, (const(at[0]), *moved(indices, at)), visit(value))
            case Block():
                init = None if m.init is None else visit(m.init)
                inside = with_fields(m, body=visit(m.body), init=init)
                return refreshed(inside) if m.iters else inside
        return rebuild(m, visit)

    def moved(indices: Any, at: tuple[int, ...]) -> list[Any]:
        return [visit(i) + by for i, by in zip(indices, at[1:], strict=True)]

    params = tuple(places[b][0] for b in description.buffers)
    return PrimFunc("kernel", params, visit(description.body))


def tensorized(intrin: TensorIntrin) -> PrimFunc:
    sch = Schedule(program_of(intrin))
    sch.tensorize(sch.get_loops("C")[0], intrin.name)
    return sch.func


def compiled(intrin: TensorIntrin) -> tuple[bytes, str]:
    """(object, assembly)"""
    library = mlc.build(tensorized(intrin), target=target_of(intrin))
    assembly = library.assembly
    if not needs_v8(intrin) or library.target.arch != "arm":
        return library.object_bytes, assembly
    with optimized(library.llvm_ir + driver_entry(library), library.target) as (machine, module):
        return bytes(machine.emit_object(module)), assembly


def offsets_of(func: PrimFunc) -> tuple[list[int], int]:
    """Where each parameter lies when all of them follow each other, aligned; and the end."""
    offsets: list[int] = []
    end = 0
    for b in func.buffers:
        offsets.append(end)
        end += -(-bytes_of(b) // ALIGNMENT) * ALIGNMENT
    return offsets, end


def bytes_of(b: Buffer) -> int:
    size = dtype_of(b.dtype).bytes
    for n in b.shape:
        size *= int(n)  # type: ignore[arg-type]
    return size


def driver_entry(library: Library) -> str:
    """An entry for load_driver, which has one input, of all parameters, and one output: C."""
    (kernel,) = library.kernels
    buffers = kernel.body.buffers
    offsets, _ = offsets_of(kernel.body)
    lines = []
    for n, offset in enumerate(offsets):
        lines += [
            f"%p{n} = getelementptr i8, ptr %in, i32 {offset}",
            f"%s{n} = getelementptr ptr, ptr %mine, i32 {n}",
            f"store ptr %p{n}, ptr %s{n}",
        ]
    words = f"<{bytes_of(buffers[-1]) // 4} x i32>"
    body = "\n".join(lines)
    return f"""
define i32 @driver(ptr %args, i32 %begin, i32 %end) nounwind {{
  %data = load ptr, ptr %args
  %in = load ptr, ptr %data
  %second = getelementptr ptr, ptr %data, i32 1
  %out = load ptr, ptr %second
  %mine = alloca [{len(buffers)} x ptr]
  {body}
  %given = alloca {{ptr, ptr, ptr}}
  store ptr %mine, ptr %given
  %status = call i32 @kernel(ptr %given, i32 0, i32 1)
  %result = load {words}, ptr %p{len(buffers) - 1}, align 4
  store {words} %result, ptr %out, align 4
  ret i32 %status
}}
"""


def main(folder: Path) -> None:
    for intrin in sorted(OWN_INTRINS, key=lambda intrin: intrin.name):
        print(intrin.name, flush=True)
        code, assembly = compiled(intrin)
        (folder / f"{intrin.name}.o").write_bytes(code)
        (folder / f"{intrin.name}.s").write_text(assembly)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
