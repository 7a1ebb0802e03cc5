"""Kernels in LLVM IR that use every kind of relocation and helper, and what they must compute.

Each has the runtime's kernel ABI with one input and one output buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """One way of generating code; `board` is the runtime that runs it."""

    name: str
    board: str
    triple: str
    features: str = ""
    reloc: str = "static"
    codemodel: str = "small"

    @property
    def is_64bit(self) -> bool:
        return self.board != "arm"


MACHINES = (
    Machine("aarch64-static", "aarch64", "aarch64-unknown-linux-gnu"),
    Machine("aarch64-pic", "aarch64", "aarch64-unknown-linux-gnu", reloc="pic"),
    Machine("aarch64-large", "aarch64", "aarch64-unknown-linux-gnu", codemodel="large"),
    Machine("arm-static", "arm", "armv7-unknown-linux-gnueabihf"),
    Machine("arm-pic", "arm", "armv7-unknown-linux-gnueabihf", reloc="pic"),
    Machine("thumb-static", "arm", "thumbv7-unknown-linux-gnueabihf"),
    Machine("thumb-pic", "arm", "thumbv7-unknown-linux-gnueabihf", reloc="pic"),
    Machine("x86_64-static", "x86_64", "x86_64-unknown-linux-gnu"),
    Machine("x86_64-pic", "x86_64", "x86_64-unknown-linux-gnu", reloc="pic"),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """`body` reads %in and writes %out; `globals` stands before the function."""

    name: str
    body: str
    input: Array
    expect: Array
    globals: str = ""
    tolerance: float = 0.0
    only_64bit: bool = False


def _at(pointer: str, kind: str, index: int) -> str:
    return f"getelementptr ({kind}, ptr {pointer}, i32 {index})"


_LIBM: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("call float @expf(float %x)", np.exp),
    ("call float @powf(float %x, float 2.5)", lambda x: x**2.5),
    ("call float @logf(float %x)", np.log),
    ("call float @sinf(float %x)", np.sin),
    ("call float @cosf(float %x)", np.cos),
    ("call float @tanf(float %x)", np.tan),
    ("call float @tanhf(float %x)", np.tanh),
    ("frem float %x, 0.75", lambda x: np.fmod(x, 0.75)),
    ("call float @llvm.floor.f32(float %x)", np.floor),
    ("call float @llvm.ceil.f32(float %x)", np.ceil),
    ("call float @llvm.trunc.f32(float %x)", np.trunc),
    ("call float @llvm.rint.f32(float %x)", np.rint),
    ("call float @llvm.roundeven.f32(float %x)", np.rint),
    ("call float @llvm.round.f32(float %x)", lambda x: np.floor(x + 0.5)),
    ("call float @llvm.sqrt.f32(float %x)", np.sqrt),
    ("call float @llvm.fma.f32(float %x, float %x, float 1.0)", lambda x: x * x + 1),
)
_LIBM_INPUT = np.array([1.3, 2.5, 0.4], "f4")


def _libm() -> Kernel:
    lines = ["%x0 = load float, ptr %in"]
    for i in range(len(_LIBM_INPUT)):
        lines.append(f"%p{i} = getelementptr float, ptr %in, i32 {i}")
        lines.append(f"%x{i}_ = load float, ptr %p{i}")
        for j, (code, _) in enumerate(_LIBM):
            n = i * len(_LIBM) + j
            lines.append(f"%y{n} = {code.replace('%x', f'%x{i}_')}")
            lines.append(f"%q{n} = getelementptr float, ptr %out, i32 {n}")
            lines.append(f"store float %y{n}, ptr %q{n}")
    names = ("exp", "log", "sin", "cos", "tan", "tanh")
    declarations = "".join(f"declare float @{name}f(float)\n" for name in names)
    declarations += "declare float @powf(float, float)\n"
    for intrinsic in ("floor", "ceil", "trunc", "rint", "roundeven", "round", "sqrt"):
        declarations += f"declare float @llvm.{intrinsic}.f32(float)\n"
    declarations += "declare float @llvm.fma.f32(float, float, float)\n"
    expect = np.stack([f(_LIBM_INPUT.astype("f8")) for _, f in _LIBM], 1)
    return Kernel("libm", "\n".join(lines), _LIBM_INPUT, expect.astype("f4"), declarations, 2e-6)


def _jump_table() -> Kernel:
    """Cases that LLVM cannot turn into a table of values: each is other code."""
    ops = ("add i32 %x, 17", "mul i32 %x, %x", "xor i32 %x, 12345", "shl i32 %x, 3",
           "sub i32 7, %x", "lshr i32 %x, 1", "or i32 %x, 4096", "and i32 %x, 5")  # fmt: skip
    body = ["%i = load i32, ptr %in", "%p = getelementptr i32, ptr %in, i32 1"]
    body += ["%x = load i32, ptr %p", "switch i32 %i, label %other ["]
    body += [f"i32 {n}, label %case{n}" for n in range(len(ops))] + ["]"]
    for n, op in enumerate(ops):
        body += [f"case{n}:", f"%r{n} = {op}", f"store volatile i32 %r{n}, ptr %out"]
        body += ["br label %done"]
    body += ["other:", "store i32 -1, ptr %out", "br label %done", "done:"]
    return Kernel("jump_table", "\n".join(body), np.array([3, 5], "i4"), np.array([40], "i4"))


KERNELS = (
    Kernel(
        "vector_constants",
        """
        %x = load <4 x float>, ptr %in
        %y = fmul <4 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0>
        %z = fadd <4 x float> %y, <float 0.5, float 1.5, float 2.5, float 3.5>
        store <4 x float> %z, ptr %out""",
        np.array([1, 2, 3, 4], "f4"),
        np.array([1.5, 5.5, 11.5, 19.5], "f4"),
    ),
    Kernel(
        "tables",
        """
        %i = load i32, ptr %in
        %p8 = getelementptr i8, ptr @bytes, i32 %i
        %v8 = load i8, ptr %p8
        %w8 = zext i8 %v8 to i32
        %p32 = getelementptr i32, ptr @words, i32 %i
        %v32 = load i32, ptr %p32
        %sum = add i32 %w8, %v32
        store i32 %sum, ptr %out""",
        np.array([2], "i4"),
        np.array([3033], "i4"),
        """
        @bytes = internal constant [4 x i8] c"\\0b\\16\\21\\2c"
        @words = internal constant [4 x i32] [i32 1000, i32 2000, i32 3000, i32 4000]""",
    ),
    Kernel(
        "pointer_table",
        """
        %i = load i32, ptr %in
        %p = getelementptr ptr, ptr @pointers, i32 %i
        %q = load ptr, ptr %p
        %v = load i32, ptr %q
        store i32 %v, ptr %out
        %w = call i32 @peek(ptr @first)
        %out1 = getelementptr i32, ptr %out, i32 1
        store i32 %w, ptr %out1""",
        np.array([1], "i4"),
        np.array([222, 110], "i4"),
        """
        define i32 @peek(ptr %p) nounwind noinline { %v = load volatile i32, ptr %p ret i32 %v }
        @first = internal global [2 x i32] [i32 110, i32 111]
        @second = internal global [2 x i32] [i32 221, i32 222]
        @pointers = internal constant [2 x ptr] [ptr @first,
            ptr getelementptr ([2 x i32], ptr @second, i32 0, i32 1)]""",
    ),
    Kernel(
        "function_table",
        """
        %i = load i32, ptr %in
        %p = getelementptr ptr, ptr @functions, i32 %i
        %f = load ptr, ptr %p
        %v = call i32 %f(i32 10)
        store i32 %v, ptr %out
        store volatile ptr @twice, ptr @chosen
        %g = load volatile ptr, ptr @chosen
        %w = call i32 %g(i32 50)
        %out1 = getelementptr i32, ptr %out, i32 1
        store i32 %w, ptr %out1""",
        np.array([1], "i4"),
        np.array([20, 100], "i4"),
        """
        @functions = internal constant [2 x ptr] [ptr @once, ptr @twice]
        @chosen = internal global ptr null
        define internal i32 @once(i32 %x) nounwind noinline { ret i32 %x }
        define internal i32 @twice(i32 %x) nounwind noinline { %y = add i32 %x, %x ret i32 %y }""",
    ),
    _jump_table(),
    Kernel(
        "calls",
        """
        %x = load float, ptr %in
        %a = call float @inner(float %x)
        %b = call float @outer(float %a)
        %c = call float @tail_of_library(float %b)
        %d = call float @tail_of_ours(float %c)
        store float %d, ptr %out""",
        np.array([0.0], "f4"),
        np.array([np.exp(3.0) + 3.0], "f4"),
        """
        declare float @expf(float)
        define internal float @inner(float %x) nounwind noinline {
          %y = fadd float %x, 1.0
          ret float %y
        }
        define float @outer(float %x) nounwind noinline {
          %y = fadd float %x, 2.0
          ret float %y
        }
        define float @tail_of_library(float %x) nounwind noinline {
          %y = tail call float @expf(float %x)
          ret float %y
        }
        define float @last(float %x) nounwind noinline { %y = fadd float %x, 3.0 ret float %y }
        define float @tail_of_ours(float %x) nounwind noinline {
          %y = tail call float @last(float %x)
          ret float %y
        }""",
        tolerance=1e-6,
    ),
    _libm(),
    Kernel(
        "division",
        """
        %a = load i32, ptr %in
        %bp = getelementptr i32, ptr %in, i32 1
        %b = load i32, ptr %bp
        %q = sdiv i32 %a, %b
        %r = srem i32 %a, %b
        %uq = udiv i32 %a, %b
        %ur = urem i32 %a, %b
        %al = sext i32 %a to i64
        %bl = sext i32 %b to i64
        %ql = sdiv i64 %al, %bl
        %rl = srem i64 %al, %bl
        %uql = udiv i64 %al, %bl
        %url = urem i64 %al, %bl
        %qs = sext i32 %q to i64
        %rs = sext i32 %r to i64
        %uqs = zext i32 %uq to i64
        %urs = zext i32 %ur to i64
        %s0 = insertelement <8 x i64> undef, i64 %qs, i32 0
        %s1 = insertelement <8 x i64> %s0, i64 %rs, i32 1
        %s2 = insertelement <8 x i64> %s1, i64 %uqs, i32 2
        %s3 = insertelement <8 x i64> %s2, i64 %urs, i32 3
        %s4 = insertelement <8 x i64> %s3, i64 %ql, i32 4
        %s5 = insertelement <8 x i64> %s4, i64 %rl, i32 5
        %s6 = insertelement <8 x i64> %s5, i64 %uql, i32 6
        %s7 = insertelement <8 x i64> %s6, i64 %url, i32 7
        store <8 x i64> %s7, ptr %out""",
        np.array([-1000, 7], "i4"),
        np.array(
            [
                -142,
                -6,
                (2**32 - 1000) // 7,
                (2**32 - 1000) % 7,
                -142,
                -6,
                (2**64 - 1000) // 7,
                (2**64 - 1000) % 7,
            ],
        ).astype("u8"),
    ),
    Kernel(
        "division_128",
        """
        %a = load i128, ptr %in
        %bp = getelementptr i128, ptr %in, i32 1
        %b = load i128, ptr %bp
        %q = udiv i128 %a, %b
        %r = urem i128 %a, %b
        store i128 %q, ptr %out
        %out1 = getelementptr i128, ptr %out, i32 1
        store i128 %r, ptr %out1""",
        np.array([5, 1 << 40, 0, 3], "u8"),
        np.array([(1 << 40) // 3, 0, 5, 1], "u8"),
        only_64bit=True,
    ),
    Kernel(
        "conversions",
        """
        %x = load float, ptr %in
        %l = fptosi float %x to i64
        store i64 %l, ptr %out
        %ul = fptoui float %x to i64
        %o1 = getelementptr i64, ptr %out, i32 1
        store i64 %ul, ptr %o1
        %m = add i64 %l, 1
        %y = sitofp i64 %m to double
        %o2 = getelementptr i64, ptr %out, i32 2
        store double %y, ptr %o2""",
        np.array([3e12], "f4"),
        np.array(
            [
                int(np.float32(3e12)),
                int(np.float32(3e12)),
                np.array([float(int(np.float32(3e12)) + 1)]).view("u8")[0],
            ],
            "u8",
        ),
    ),
    Kernel(
        "half",
        """
        %x = load float, ptr %in
        %h = fptrunc float %x to half
        store half %h, ptr %out
        %b = fptrunc float %x to bfloat
        %o1 = getelementptr i16, ptr %out, i32 1
        store bfloat %b, ptr %o1
        %hp = getelementptr i16, ptr %in, i32 2
        %g = load half, ptr %hp
        %gx = fpext half %g to float
        %g2 = fadd float %gx, 1.0
        %g3 = fptrunc float %g2 to half
        %o2 = getelementptr i16, ptr %out, i32 2
        store half %g3, ptr %o2
        %d = fpext float %x to double
        %e = fadd double %d, 0x3D70000000000000
        %db = fptrunc double %e to bfloat
        %o3 = getelementptr i16, ptr %out, i32 3
        store bfloat %db, ptr %o3
        %dh = fptrunc double %d to half
        %o4 = getelementptr i16, ptr %out, i32 4
        store half %dh, ptr %o4""",
        # 1.00390625 lies halfway between two bfloat16: 0x3f80 (even) and 0x3f81. The double is a
        # little more, so that rounding it to float first would go the wrong way.
        np.frombuffer(np.float32(1.00390625).tobytes() + np.array([2.5, 0], "f2").tobytes(), "u2"),
        np.array(
            [
                np.float16(1.00390625).view("u2"),
                0x3F80,
                np.float16(3.5).view("u2"),
                0x3F81,
                np.float16(1.00390625).view("u2"),
            ],
            "u2",
        ),
    ),
    Kernel(
        "data",
        f"""
        %n = load i32, ptr @visible
        %m = add i32 %n, 1
        store i32 %m, ptr @visible
        store i32 %m, ptr {_at("@zeros", "i32", 100)}
        %z = load volatile i32, ptr {_at("@zeros", "i32", 100)}
        store i32 %z, ptr %out
        %z0 = load volatile i32, ptr @zeros
        %o1 = getelementptr i32, ptr %out, i32 1
        store i32 %z0, ptr %o1
        %p = load volatile i32, ptr @plain
        %b = load volatile i8, ptr @small
        %s = load volatile i16, ptr @medium
        %d = load volatile i64, ptr @big
        %q = load volatile <2 x i64>, ptr @huge
        %b32 = zext i8 %b to i32
        %s32 = zext i16 %s to i32
        %d32 = trunc i64 %d to i32
        %qe = extractelement <2 x i64> %q, i32 1
        %q32 = trunc i64 %qe to i32
        %t0 = add i32 %b32, %s32
        %t1 = add i32 %t0, %d32
        %t2_ = add i32 %t1, %q32
        %t2 = add i32 %t2_, %p
        %o2 = getelementptr i32, ptr %out, i32 2
        store i32 %t2, ptr %o2""",
        np.array([0], "i4"),
        np.array([42, 0, 54321], "i4"),
        """
        @visible = global i32 41
        @zeros = internal global [5000 x i32] zeroinitializer, align 64
        @small = internal global i8 1
        @medium = internal global i16 20, align 2
        @plain = internal global i32 50000, align 4
        @big = internal global i64 300, align 8
        @huge = internal global <2 x i64> <i64 9, i64 4000>, align 16""",
    ),
    Kernel(
        "memory",
        """
        %n = load i32, ptr %in
        call void @llvm.memcpy.p0.p0.i32(ptr %out, ptr %in, i32 %n, i1 false)
        %o = getelementptr i8, ptr %out, i32 %n
        call void @llvm.memset.p0.i32(ptr %o, i8 7, i32 %n, i1 false)
        %o2 = getelementptr i8, ptr %out, i32 2
        call void @llvm.memmove.p0.p0.i32(ptr %o2, ptr %out, i32 %n, i1 false)
        %isnull = icmp eq ptr @nobody_has_this, null
        %w = zext i1 %isnull to i8
        %o3 = getelementptr i8, ptr %out, i32 %n
        store i8 %w, ptr %o3""",
        np.array([8, 0x04030201], "i4"),
        np.array([8, 0, 8, 0, 0, 0, 1, 2, 1, 4, 7, 7, 7, 7, 7, 7], "u1"),
        """
        @nobody_has_this = extern_weak global i8
        declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)
        declare void @llvm.memmove.p0.p0.i32(ptr, ptr, i32, i1)
        declare void @llvm.memset.p0.i32(ptr, i8, i32, i1)""",
    ),
    Kernel(
        "library_pointer",
        """
        store volatile ptr @tanhf, ptr @kept
        %f = load volatile ptr, ptr @kept
        %x = load float, ptr %in
        %y = call float %f(float %x)
        %g = load volatile ptr, ptr @constant_pointer
        %z = call float %g(float %y)
        %w = call float @atanf(float %z)
        store float %w, ptr %out""",
        np.array([0.5], "f4"),
        np.array([np.arctan(np.sin(np.tanh(0.5)))], "f4"),
        """
        @kept = internal global ptr null
        @constant_pointer = internal constant ptr @sinf
        declare float @tanhf(float)
        declare float @sinf(float)
        declare float @atanf(float) nonlazybind""",
        tolerance=1e-6,
    ),
)


def runs_on(machine: Machine) -> tuple[Kernel, ...]:
    return tuple(k for k in KERNELS if machine.is_64bit or not k.only_64bit)


@cache
def compile_ir(machine: Machine, ir: str) -> bytes:
    """The ELF object of a module in LLVM IR."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{machine.triple}"\n{ir}')
    module.verify()
    target_machine = llvm.Target.from_triple(machine.triple).create_target_machine(
        features=machine.features, opt=2, reloc=machine.reloc, codemodel=machine.codemodel
    )
    return bytes(target_machine.emit_object(module))


def kernel_ir(kernel: Kernel) -> str:
    return f"""
        {kernel.globals}
        define i32 @{kernel.name}(ptr %args, i32 %begin, i32 %end) nounwind {{
          %data = load ptr, ptr %args
          %in = load ptr, ptr %data
          %slot = getelementptr ptr, ptr %data, i32 1
          %out = load ptr, ptr %slot
          {kernel.body}
          ret i32 0
        }}"""


def object_of(machine: Machine) -> bytes:
    """One object with every kernel that the machine can run."""
    lines: dict[str, None] = {}  # a declaration may stand in two kernels, but once in a module
    for kernel in runs_on(machine):
        for line in kernel_ir(kernel).splitlines():
            if line.strip().startswith("declare"):
                lines[line.strip()] = None
    bodies = [
        line
        for kernel in runs_on(machine)
        for line in kernel_ir(kernel).splitlines()
        if not line.strip().startswith("declare")
    ]
    return compile_ir(machine, "\n".join([*lines, *bodies]))
