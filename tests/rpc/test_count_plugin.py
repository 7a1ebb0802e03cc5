"""The counting plugin on known instructions: each runs LOOPS times between two marks, in each of
the three instruction sets, and must be found LOOPS times in its class and nowhere else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlc_rpc import qemu
from mlc_rpc.counters import (
    BEGIN,
    CALIBRATION,
    CLASSES,
    END,
    Record,
    parse_records,
    per_call,
)

LOOPS = 1000

# The class of each instruction. x9, r2 and r5 point at a buffer, r8 at zeros in it; x10 and r6 are
# free; x11 and r4 count the loop.
A64 = """
mac     fmla v0.4s, v1.4s, v2.4s | fmls v0.2d, v1.2d, v2.2d | fmla v0.4s, v1.4s, v2.s[1]
mac     fmla v0.8h, v1.8h, v2.8h | fmls v0.8h, v1.8h, v2.8h | fmla v0.8h, v1.8h, v2.h[3]
mac     mla v0.4s, v1.4s, v2.4s | mls v0.8h, v1.8h, v2.8h | mla v0.4s, v1.4s, v2.s[2]
mac     smlal v0.4s, v1.4h, v2.4h | umlal2 v0.2d, v1.4s, v2.4s | smlsl v0.8h, v1.8b, v2.8b
mac     smlal v0.4s, v1.4h, v2.h[1] | sqdmlal v0.4s, v1.4h, v2.4h | sqrdmlah v0.4s, v1.4s, v2.4s
mac     sdot v0.4s, v1.16b, v2.16b | udot v0.4s, v1.16b, v2.16b | sdot v0.4s, v1.16b, v2.4b[1]
mac     udot v0.4s, v1.16b, v2.4b[1] | usdot v0.4s, v1.16b, v2.16b | sudot v0.4s, v1.16b, v2.4b[0]
mac     smmla v0.4s, v1.16b, v2.16b | ummla v0.4s, v1.16b, v2.16b | usmmla v0.4s, v1.16b, v2.16b
mac     bfdot v0.4s, v1.8h, v2.8h | bfmmla v0.4s, v1.8h, v2.8h | bfmlalb v0.4s, v1.8h, v2.8h
mac     fmlal v0.4s, v1.4h, v2.4h | fmlal2 v0.4s, v1.4h, v2.4h | fmlsl2 v0.4s, v1.4h, v2.h[1]
mac     fcmla v0.4s, v1.4s, v2.4s, #90 | fmla z0.s, p0/m, z1.s, z2.s | fmla z0.s, z1.s, z2.s[1]
mac     mla z0.s, p0/m, z1.s, z2.s | fmad z0.s, p0/m, z1.s, z2.s | sdot z0.s, z1.b, z2.b
mac     smmla z0.s, z1.b, z2.b
vector  fmul v0.4s, v1.4s, v2.4s | fmul v0.4s, v1.4s, v2.s[1] | fadd v0.4s, v1.4s, v2.4s
vector  mul v0.4s, v1.4s, v2.4s | mul v0.4s, v1.4s, v2.s[1] | smull v0.4s, v1.4h, v2.4h
vector  smull v0.4s, v1.4h, v2.h[1] | sadalp v0.4s, v1.8h | fmulx v0.4s, v1.4s, v2.4s
vector  fmax v0.4s, v1.4s, v2.4s | sqrdmulh v0.4s, v1.4s, v2.4s | sqrdmulh v0.4s, v1.4s, v2.s[0]
vector  fmadd s0, s1, s2, s3 | fadd d0, d1, d2 | fmov s0, w10 | dup v0.4s, w10
vector  tbl v0.16b, {v1.16b}, v2.16b | movi v0.4s, #0 | shl v0.4s, v1.4s, #3
vector  fcadd v0.4s, v1.4s, v2.4s, #90 | addv s0, v1.4s | fmla s0, s1, v2.s[0] | scvtf v0.4s, v1.4s
vector  pmull v0.8h, v1.8b, v2.8b | fcmp s0, s1 | fadd z0.s, z1.s, z2.s
vector  fmul z0.s, p0/m, z0.s, z2.s | fmul v0.8h, v1.8h, v2.8h
load    ldr x10, [x9] | ldr w10, [x9, #4] | ldrb w10, [x9] | ldrsh x10, [x9] | ldrsw x10, [x9]
load    ldur x10, [x9, #1] | ldp x10, x12, [x9] | ldr q0, [x9] | ldr s0, [x9] | ldp q0, q1, [x9]
load    ld1 {v0.4s}, [x9] | ld1r {v0.4s}, [x9] | ld4 {v0.16b-v3.16b}, [x9] | ldr x10, [x9, xzr]
load    ldxr x10, [x9] | ldar x10, [x9] | prfm pldl1keep, [x9] | ldur q0, [x9, #1]
load    ldapr x10, [x9] | ldadd x10, x12, [x9] | swp x10, x12, [x9] | cas x10, x12, [x9]
load    ld1w {z0.s}, p0/z, [x9] | ldr x10, 1f | ldr z0, [x9] | ldpsw x10, x12, [x9] | ldr b0, [x9]
load    ld1 {v0.s}[1], [x9]
store   str x10, [x9] | strb w10, [x9] | strh w10, [x9] | stur x10, [x9, #1] | stp x10, x12, [x9]
store   str q0, [x9] | str s0, [x9] | stp q0, q1, [x9] | st1 {v0.4s}, [x9] | st1 {v0.s}[1], [x9]
store   stlr x10, [x9] | stxr w12, x10, [x9] | st1w {z0.s}, p0, [x9] | stur q0, [x9, #1]
store   str b0, [x9] | st4 {v0.16b-v3.16b}, [x9] | str x10, [x9, xzr] | stnp x10, x12, [x9]
branch  b 1f | bl 1f | cbz xzr, 1f | cbnz xzr, 1f | tbz x10, #5, 1f | b.eq 1f
scalar  add x10, x10, #1 | madd x10, x10, x10, x10 | mov x10, #7 | adr x10, 1f | udiv x10, x10, x9
scalar  nop | dmb ish | mrs x10, tpidr_el0 | csel x10, x10, x10, eq | ubfx x10, x10, #1, #3
scalar  clz x10, x10
"""

VECTORS32 = """
mac     vmla.f32 q0, q1, q2 | vmls.f32 q0, q1, q2 | vfma.f32 q0, q1, q2 | vfms.f32 d0, d1, d2
mac     vmla.f32 q0, q1, d4[1] | vmla.i32 q0, q1, q2 | vmls.i16 q0, q1, q2 | vmla.i16 q0, q1, d4[1]
mac     vmlal.s16 q0, d2, d4 | vmlsl.u8 q0, d2, d4 | vmlal.s16 q0, d2, d4[1]
mac     vqdmlal.s16 q0, d2, d4 | vsdot.s8 q0, q1, q2 | vudot.u8 q0, q1, q2 | vsdot.s8 q0, q1, d4[1]
mac     vqrdmlah.s32 q0, q1, q2 | vsmmla.s8 q0, q1, q2 | vusdot.s8 q0, q1, q2
mac     vcmla.f32 q0, q1, q2, #90 | vfmal.f16 q0, d2, d4 | vdot.bf16 q0, q1, q2
mac     vmmla.bf16 q0, q1, q2 | vqrdmlsh.s16 q0, q1, q2 | vfma.f16 q0, q1, q2
vector  vmul.f32 q0, q1, q2 | vadd.f32 q0, q1, q2 | vmul.i32 q0, q1, q2 | vmull.s16 q0, d2, d4
vector  vmul.f32 q0, q1, d4[1] | vmull.s16 q0, d2, d4[1] | vqrdmulh.s32 q0, q1, q2
vector  vpadal.s16 q0, q1 | vmax.f32 q0, q1, q2 | vpadd.i32 d0, d1, d2 | vpadd.f32 d0, d1, d2
vector  vshl.i32 q0, q1, #3 | vmov.i32 q0, #0 | vext.8 q0, q1, q2, #3 | vtbl.8 d0, {d1}, d2
vector  vdup.32 q0, r6 | vmovn.i32 d0, q1 | vadd.f32 s0, s1, s2 | vmla.f32 s0, s1, s2 | vmov s0, r6
vector  vmov d0, r6, r7 | vmov r6, r7, d0 | vcadd.f32 q0, q1, q2, #90 | vmaxnm.f32 s0, s1, s2
vector  vcvt.s32.f32 q0, q1 | vcmp.f32 s0, s1 | vseleq.f32 s0, s1, s2 | vrinta.f32 q0, q1
vector  vabs.f16 s0, s1 | vmul.i16 q0, q1, d4[1]
load    vldr s0, [r5] | vldr d0, [r5] | vldm r5, {d0-d3} | vld1.32 {d0-d1}, [r5]
load    vld1.32 {d0[]}, [r5] | vld4.8 {d0-d3}, [r5] | vld1.32 {d0[1]}, [r5]
store   vstr s0, [r5] | vstr d0, [r5] | vstm r5, {d0-d3} | vst1.32 {d0-d1}, [r5]
store   vst1.32 {d0[1]}, [r5]
load    ldr r6, [r5] | ldrb r6, [r5, #1] | ldrh r6, [r5] | ldrsb r6, [r5] | ldrsh r6, [r5]
load    ldrd r6, r7, [r5] | ldm r5, {r6, r7} | ldr r6, [r5, r12] | ldrex r6, [r5] | pld [r5]
load    ldr r6, 3f | lda r6, [r5] | ldrsb r6, [r5, r12] | ldrexd r6, r7, [r5] | ldrexb r6, [r5]
store   str r6, [r5] | strb r6, [r5, #1] | strh r6, [r5] | strd r6, r7, [r5] | str r6, [r5, r12]
store   stm r5, {r6, r7} | strex r7, r6, [r5] | stl r6, [r5] | strh r6, [r5, r12]
branch  b 1f | bl 1f | beq 1f
scalar  add r6, r6, #1 | mul r6, r6, r7 | mla r6, r6, r7, r7 | smull r6, r7, r8, r9 | movw r6, #7
scalar  movt r6, #7 | cmp r6, r7 | tst r6, r7 | nop | dmb ish | sdiv r6, r7, r6
scalar  ubfx r6, r6, #1, #3 | mrc p15, 0, r6, c13, c0, 3 | uxtb r6, r7 | clz r6, r7 | mrs r6, apsr
scalar  ssat r6, #7, r7
"""

A32 = (
    VECTORS32
    + """
branch  bxeq lr | moveq pc, lr
scalar  mvn r6, r7 | rsb r6, r7, #0 | umlal r6, r7, r8, r9
"""
)

T32 = (
    VECTORS32
    + """
branch  cbz r2, 6f | cbnz r3, 6f | b.w 1f | beq.w 1f | tbb [r8, r3]
load    ldr r1, [sp] | ldr.w r6, [r5] | ldr r1, [r2, #4] | ldrb r1, [r2, r3] | ldrsb r1, [r2, r3]
load    ldm r2!, {r0, r1} | ldrh r1, [r2]
store   str r1, [sp] | str.w r6, [r5] | str r1, [r2, #4] | strb r1, [r2, r3] | stm r2!, {r0}
store   strh r1, [r2]
scalar  adds r1, r1, #1 | add.w r6, r6, #1 | lsls r1, r1, #2 | mov r6, r7 | add r6, r7 | cmp r6, r7
scalar  uxtb r1, r1 | rev r1, r1 | add r1, sp, #8 | adr r1, 3f | muls r1, r0, r1 | teq r6, r7
"""
)


# Where an instruction computes on what it loads, both classes. r9 points at the buffer.
X86 = """
mac         vfmadd231ps ymm0, ymm1, ymm2 | vfmadd213ss xmm0, xmm1, xmm2
mac         vfnmadd132pd ymm0, ymm1, ymm2
mac         vpmaddwd ymm0, ymm1, ymm2 | vpmaddubsw ymm0, ymm1, ymm2 | pmaddwd xmm0, xmm1
mac+load    vfmadd231ps ymm0, ymm1, [r9] | vfmadd231ps ymm0, ymm1, [r9 + 8 * r14 + 64]
mac+load    pmaddwd xmm0, [r9]
vector      vaddps ymm0, ymm1, ymm2 | mulps xmm0, xmm1 | vmaxps ymm0, ymm1, ymm2
vector      sqrtss xmm0, xmm1
vector      vpaddd ymm0, ymm1, ymm2 | vcvtdq2ps ymm0, ymm1 | vperm2f128 ymm0, ymm1, ymm2, 1
vector      vmovaps ymm0, ymm1 | vxorps xmm0, xmm0, xmm0 | vroundps ymm0, ymm1, 3
vector      comiss xmm0, xmm1
vector      vbroadcastss ymm0, xmm1 | vpmovsxbw ymm0, xmm1 | vmovd r10d, xmm0
vector      vextractf128 xmm0, ymm1, 1
vector+load vaddps ymm0, ymm1, [r9] | addss xmm0, [r9] | vpmovsxbw ymm0, [r9]
vector+load vblendps ymm0, ymm1, [r9], 3
load        vmovups ymm0, [r9] | movss xmm0, [r9] | vbroadcastss ymm0, [r9] | vmovd xmm0, [r9]
load        mov r10, [r9] | mov r10d, [r9 + r14] | movzx r10d, byte ptr [r9]
load        movsxd r10, dword ptr [r9]
load        vmovq xmm0, [r9] | prefetcht0 [r9] | vmaskmovps ymm0, ymm1, [r9]
load        vgatherdps xmm0, [r9 + xmm3], xmm2
store       vmovups [r9], ymm0 | movss [r9], xmm0 | vextractf128 [r9], ymm0, 1 | vmovq [r9], xmm0
store       mov [r9], r10 | mov byte ptr [r9], 1 | push r10 | vmovntps [r9], ymm0
store       vmaskmovps [r9], ymm1, ymm0
load        pop r10
branch      jmp 1f | je 1f | call 1f
scalar      add r10, 1 | lea r10, [r9 + 4 * r14] | imul r10, r14 | mov r10, 7 | cmovne r10, r14
scalar      nop
scalar      shl r10, 3 | test r10, r10 | movzx r10d, r14b | vzeroupper | xor r10d, r10d
scalar      rorx r10, r14, 7
scalar      andn r10, r14, r14 | bswap r10 | sete r10b | cdqe | tzcnt r10, r14
scalar+load add r10, [r9] | cmp [r9], r14 | imul r10, [r9] | test [r9], r14d
scalar+load cmp byte ptr [r9], 3
"""


@dataclass(frozen=True)
class Isa:
    """A program for one instruction set: its source for what, and what runs it."""

    table: str
    head: str
    mark: str  # {tag}, and the index in halves, {low} and {high}
    loop: str  # of {insn}, {loops} times
    leave: str
    zig: tuple[str, str]  # target, CPU
    qemu: str


ARM = (
    "arm-linux-musleabihf",
    "generic+v8_6a+neon+dotprod+fullfp16+fp16fml+bf16+i8mm+hwdiv_arm",
)
A32_HEAD = ".syntax unified\n.text\n.arm\n.global _start\n_start:\n"
ARM_MARK = "movw r7, #4242\nmov r0, #{tag}\nmovw r1, #{low}\nmovt r1, #{high}\nsvc #0\n"
ARM_LOOP = """
    movw r5, #:lower16:buffer
    movt r5, #:upper16:buffer
    add r5, r5, #1024
    mov r2, r5
    mov r3, #0
    mov r12, #0
    add r8, r5, #12288
    mov r4, #{loops}
    cmp r4, #0
2:  {insn}
1:  subs r4, r4, #1
    bne 2b
6:  b 4f
    .balign 4
3:  .word 0
4:
"""
ARM_LEAVE = "mov r7, #248\nmov r0, #0\nsvc #0\n"

ISAS = {
    "a64": Isa(
        A64,
        ".text\n.global _start\n_start:\nptrue p0.s\n",
        "mov x8, #4242\nmov x0, #{tag}\nmov w1, #{low}\nmovk w1, #{high}, lsl #16\nsvc #0\n",
        """
    adrp x9, buffer
    add x9, x9, :lo12:buffer
    add x9, x9, #1024
    mov x11, #{loops}
    cmp x11, #0
2:  {insn}
1:  subs x11, x11, #1
    b.ne 2b
""",
        "mov x8, #94\nmov x0, #0\nsvc #0\n",
        (
            "aarch64-linux-musl",
            "generic+dotprod+i8mm+bf16+fullfp16+fp16fml+complxnum+sve+lse+rdm+rcpc",
        ),
        "qemu-aarch64",
    ),
    "a32": Isa(A32, A32_HEAD, ARM_MARK, ARM_LOOP, ARM_LEAVE, ARM, "qemu-arm"),
    # Reached from A32 by an odd address, as generated code is.
    "t32": Isa(
        T32,
        A32_HEAD + "adr r0, 1f + 1\nbx r0\n.thumb\n.balign 4\n1:\n",
        ARM_MARK,
        ARM_LOOP,
        ARM_LEAVE,
        ARM,
        "qemu-arm",
    ),
    "x86-64": Isa(
        X86,
        ".intel_syntax noprefix\n.text\n.global _start\n_start:\n",
        "mov eax, 4242\nmov edi, {tag}\nmov esi, {low} + {high} * 65536\nxor edx, edx\nsyscall\n",
        """
    lea r9, [rip + buffer]
    add r9, 1024
    xor r14d, r14d
    mov r12d, {loops}
    pxor xmm3, xmm3
    cmp r12, 0
2:  {insn}
1:  sub r12, 1
    jne 2b
""",
        "mov eax, 231\nxor edi, edi\nsyscall\n",
        ("x86_64-linux-musl", "x86_64_v3"),
        "qemu-x86_64",
    ),
}


@pytest.fixture(params=["installed", "built"])
def emulator(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Path of a QEMU by its name: the system's, whose plugin interface is an old one on Debian 12,
    and the one that scripts/build-qemu made."""
    folder = qemu.built_folder() if request.param == "built" else None

    def find(name: str) -> str:
        path = shutil.which(folder / name if folder else name)
        if path is None:
            pytest.skip("try: " + ("scripts/build-qemu" if folder else "apt install qemu-user"))
        return path

    return find


@pytest.mark.parametrize("name", ISAS)
def test_every_class(
    name: str, emulator: Callable[[str], str], count_plugin: Path, tmp_path: Path
) -> None:
    isa = ISAS[name]
    program = emulator(isa.qemu)
    table = rows(isa.table)
    text = [isa.head]
    for index, insn in [(CALIBRATION, ""), *enumerate(insn for _, insn in table)]:
        low, high = index & 0xFFFF, index >> 16
        text.append(isa.mark.format(tag=BEGIN, low=low, high=high))
        text.append(isa.loop.format(loops=LOOPS, insn=insn))
        text.append(isa.mark.format(tag=END, low=low, high=high))
    text += [isa.leave, ".bss\n.balign 64\nbuffer: .space 16384\n"]
    records = run(isa, program, "".join(text), count_plugin, tmp_path)
    wrong = [
        f"{insn}: {wanted} expected, found {found.by_class}"
        for (wanted, insn), found in zip(table, per_call(records), strict=True)
        if found.by_class != {c: LOOPS * (c in wanted.split("+")) for c in CLASSES}
    ]
    assert not wrong, "\n".join(wrong)


def test_a_thumb_block_that_ends_with_its_page(
    emulator: Callable[[str], str], count_plugin: Path, tmp_path: Path
) -> None:
    """QEMU peeks past the first of the two narrow instructions, and reports four bytes for it."""
    isa = ISAS["t32"]
    program = emulator(isa.qemu)
    calibrate = [isa.mark.format(tag=tag, low=0xFFFF, high=0xFFFF) for tag in (BEGIN, END)]
    begin, end = (isa.mark.format(tag=tag, low=0, high=0) for tag in (BEGIN, END))
    place = "b.w 1f\n.balign 4096\n.space 4096 - 44\n1:\n"
    body = ".rept 10\nadd.w r6, r6, #1\n.endr\nadds r1, #1\nadds r1, #1\n"
    text = "".join((isa.head, *calibrate, begin, place, body, end, isa.leave))
    (call,) = per_call(run(isa, program, text, count_plugin, tmp_path))
    assert call.by_class == {c: {"scalar": 12, "branch": 1}.get(c, 0) for c in CLASSES}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_of_the_interface(version: int, count_plugin: Path, tmp_path: Path) -> None:
    """Those of QEMU 8, 9.0, 9.1 and 9.2, of which a system has one or two at most: each is played
    by a program that has its functions and no others."""
    host, counts = tmp_path / "host", tmp_path / "counts"
    source = Path(__file__).with_name("plugin_host.c")
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang here; try: apt-get install gcc libc6-dev")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror", f"-DVERSION={version}"]
    command = [compiler, *flags, "-rdynamic", str(source), "-o", str(host), "-ldl"]
    subprocess.run(command, check=True)
    done = subprocess.run([host, count_plugin, counts], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version}\n", "")
    (call,) = per_call(parse_records(counts.read_bytes()))
    times = 5 if version == 1 else 7  # on a second virtual CPU, too
    executed = dict.fromkeys(("mac", "load", "scalar", "branch"), times)
    assert call.by_class == dict.fromkeys(CLASSES, 0) | executed


def rows(table: str) -> list[tuple[str, str]]:
    """(class, instruction) of a table's lines."""
    split = (line.split(None, 1) for line in filter(None, table.splitlines()))
    return [(kind, insn.strip()) for kind, rest in split for insn in rest.split("|")]


def run(isa: Isa, emulator: str, text: str, plugin: Path, folder: Path) -> list[Record]:
    source, program, counts = folder / "loops.s", folder / "loops", folder / "counts"
    source.write_text(text)
    target, cpu = isa.zig
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, f"-mcpu={cpu}"]
    subprocess.run([*zig, "-nostdlib", "-static", source, "-o", program], check=True)
    command = [emulator, "-cpu", "max", "-plugin", f"{plugin},out={counts}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return parse_records(counts.read_bytes())
