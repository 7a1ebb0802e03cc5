"""C source: its text, that compilers take it without a warning, and its numbers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen import Library, c_source, compile_kernels, metadata
from mlc_deploy.codegen.c_fixed import ABI
from mlc_deploy.errors import CodegenError
from mlc_deploy.ir import (
    Block,
    Buffer,
    Call,
    Evaluate,
    IRModule,
    Let,
    Load,
    PrimFunc,
    Ramp,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    load,
    seq,
)
from mlc_deploy.lower import Kernel
from tests.codegen.c_programs import Program, all_programs, rules
from tests.sessions import TARGETS, board_named

Array = NDArray[Any]
Compiler = tuple[str, ...]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STRICT = "-std=c11 -Wall -Wextra -Wconversion -Wshadow -Werror".split()
SANITIZE = {
    "gcc": "-O0 -g -fsanitize=undefined,address -fno-sanitize-recover=all".split(),
    "zig": ["-O0", "-fsanitize=undefined"],  # it has no AddressSanitizer
}
SANITIZE["clang"] = SANITIZE["gcc"]
ZIG = (sys.executable, "-m", "ziglang", "cc")
COMPILERS: dict[str, Compiler] = {
    name: (name,) for name in ("gcc", "clang") if shutil.which(name)
} or {"zig": ZIG}  # one there always is: the runtime is built with it
ANY_COMPILER = next(iter(COMPILERS.values()))


@cache
def programs() -> dict[str, Program]:
    found = {p.name: p for p in all_programs()}
    assert len(found) == len(all_programs())
    return found


@cache
def library(target: str) -> Library:
    """Every program, with the target's default schedule where it has none."""
    return mlc.build(IRModule({name: p.func for name, p in programs().items()}), target=target)


def compiled(
    lib: Library, folder: Path, compiler: Compiler, flags: Sequence[str], table: str = ""
) -> Path:
    """A program that calls the library's kernels as the table says, or on their programs' data."""
    lib.save(folder / "kernels.c")
    (folder / "calls.h").write_text(table or call_table(lib))
    sources = [folder / "kernels.c", HERE / "call_kernels.c"]
    include = ['-DKERNELS_H="kernels.h"', f"-I{folder}"]
    run_compiler(compiler, [*flags, *include, *sources, "-lm", "-o", folder / "program"])
    return folder / "program"


def run_compiler(compiler: Compiler, words: Sequence[str | Path]) -> None:
    """Warnings are errors, and whatever it says is one."""
    command = [*compiler, *STRICT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def call_table(lib: Library) -> str:
    """What call_kernels.c is to call: every kernel, on its program's parameters."""
    rows = []
    symbols = [line.split()[1] for line in c_source(lib)[1].splitlines() if line.startswith("/* ")]
    symbols = symbols[-len(lib.kernels) :]
    for symbol, entry in zip(symbols, metadata(lib)["kernels"], strict=True):
        p = programs()[entry["name"]]
        sizes = ", ".join(str(a.nbytes) for a in (*p.inputs, *p.expected))
        scalars = ", ".join(map(str, p.scalars or (0,)))
        bound = dict(zip(entry["scalars"], p.scalars, strict=True))
        tasks = bound.get(str(entry["tasks"]), entry["tasks"])
        row = f"{{{symbol}, {{{sizes}}}, {{{scalars}}}, {tasks}, {entry['workspace']}}},"
        rows.append(row)
    return "static const Call CALLS[] = {\n" + "\n".join(rows) + "\n};\n"


def outputs_of(program: Path) -> dict[str, list[Array]]:
    """What the kernels computed, by name; outputs begin as ones' bits, so that what is left
    unwritten shows."""
    given = [[*p.inputs, *(_unwritten(a) for a in p.expected)] for p in programs().values()]
    data = b"".join(np.ascontiguousarray(a).tobytes() for arrays in given for a in arrays)
    done = subprocess.run([program], input=data, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout) == len(data)
    found: dict[str, list[Array]] = {}
    at = 0
    for name, p in programs().items():
        at += sum(a.nbytes for a in p.inputs)
        found[name] = []
        for a in p.expected:
            flat = np.frombuffer(done.stdout[at : at + a.nbytes], a.dtype)
            found[name].append(flat.reshape(a.shape))
            at += a.nbytes
    return found


def _unwritten(a: Array) -> Array:
    return np.frombuffer(b"\x55" * a.nbytes, a.dtype).reshape(a.shape)


def assert_close(found: Array, expected: Array) -> None:
    """The contract for numbers: integers exactly, floats within an error of theirs."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    relative, absolute = (5e-3, 2e-3) if found.dtype == np.float16 else (1e-4, 2e-5)
    finite = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute * float(finite))


BUILDS = [
    pytest.param(target, compiler, flags, id=f"{target}-{name}-{kind}")
    for target in ("c", "x86_64")
    for name, compiler in COMPILERS.items()
    for kind, flags in (("optimized", ["-O2"]), ("sanitized", SANITIZE[name]))
    if kind == "optimized" or name == min(COMPILERS)
]


@pytest.mark.parametrize(("target", "compiler", "flags"), BUILDS)
def test_numbers(target: str, compiler: Compiler, flags: list[str], tmp_path: Path) -> None:
    """Every program, with scalar loops and with those that were made for vectors."""
    found = outputs_of(compiled(library(target), tmp_path, compiler, flags))
    wrong = []
    for name, p in programs().items():
        for mine, theirs in zip(found[name], p.expected, strict=True):
            try:
                assert_close(mine, theirs)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_numbers_are_those_of_llvm() -> None:
    """The same kernels as an object on this machine. Left out is a kernel called exp, which the
    others would find in place of libm's."""
    kernels = [k for k in library("host").kernels if k.name != "exp"]
    with mlc.connect("local://") as board:
        module = board.load(compile_kernels("programs", kernels, mlc.Target("host")))
        for kernel in kernels:
            p = programs()[kernel.name]
            tensors = [board.tensor(np.array(a)) for a in (*p.inputs, *map(_unwritten, p.expected))]
            module[kernel.name](*tensors)
            for found, expected in zip(tensors[len(p.inputs) :], p.expected, strict=True):
                assert_close(found.numpy(), expected)


@pytest.mark.parametrize("board", ["armv7", "armv7_scalar", "aarch64"])
def test_rules_hold_on_arm(board: str, request: pytest.FixtureRequest) -> None:
    """Division by 0 and -1, shifts by any amount, and floats beyond an integer's range."""
    made = {p.name: p for p in rules()}
    lib = mlc.build(IRModule({name: p.func for name, p in made.items()}), target=TARGETS[board])
    session = board_named(request, board)
    module = session.load(lib)
    for name, p in made.items():
        tensors = [session.tensor(np.array(a)) for a in (*p.inputs, *map(_unwritten, p.expected))]
        module[name](*tensors)
        for found, expected in zip(tensors[len(p.inputs) :], p.expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
@pytest.mark.parametrize("target", ["c", "x86_64", "armv7a"])
def test_digits_kernels_compile(compiler: Compiler, target: str, tmp_path: Path) -> None:
    model = mlc.compile(ROOT / "host" / "mlc_deploy" / "models" / "digits_cnn.onnx", target)
    model.library.save(tmp_path / "digits.c")
    run_compiler(compiler, ["-O2", "-c", tmp_path / "digits.c", "-o", tmp_path / "digits.o"])
    assert (tmp_path / "digits.h").read_text().count("\nint32_t ") == len(model.library.kernels)


def scores(target: str) -> Library:
    n = te.var("n")
    a, b = te.placeholder((n, 20), "float32", "a"), te.placeholder((20,), "int8", "b")
    k = te.reduce_axis((0, 20), "k")
    row = te.compute((n,), lambda i: te.max(a[i, k] * b[k].astype("float32"), axis=k), "row")
    out = te.compute((n, 40), lambda i, j: te.exp(row[i] - a[i, j // 2]) + 0.1, "out")
    return mlc.build([a, b, row, out], target=target, name="scores")


@pytest.mark.parametrize("machine", ["", "armv7a-linux-gnueabihf", "aarch64-linux-gnu"])
def test_text(machine: str, golden: Callable[..., None]) -> None:
    """The same wherever it is made, since it is for no machine in particular."""
    source, header = c_source(scores(f"c -mtriple={machine}" if machine else "c"))
    golden(f"---- scores.h\n{header}\n---- scores.c\n{source}", "c_source")


def test_abi_is_that_of_the_runtime() -> None:
    text = (ROOT / "device_runtime" / "include" / "mlc_abi.h").read_text()
    assert text[text.index("#ifndef") :].strip() == ABI


@pytest.mark.parametrize("first", ["kernels.h", "mlc_abi.h"])
def test_header_goes_with_the_runtimes(first: str, tmp_path: Path) -> None:
    library("c").save(tmp_path / "kernels.c")
    second = "mlc_abi.h" if first == "kernels.h" else "kernels.h"
    (tmp_path / "user.c").write_text(
        f'#include "{first}"\n#include "{second}"\n'
        "int version = MLC_ABI_VERSION;\nmlc_kernel *kernel = threads;\n"
    )
    include = f"-I{ROOT / 'device_runtime' / 'include'}"
    run_compiler(ANY_COMPILER, [include, "-c", tmp_path / "user.c", "-o", tmp_path / "user.o"])


@pytest.mark.parametrize("machine", ["armv7a-linux-gnueabihf", "aarch64-linux-gnu"])
def test_target_has_no_vectors(machine: str) -> None:
    target = mlc.Target(f"c -mtriple={machine}")
    assert (target.register_bits, target.vector_registers, target.keys) == (0, 0, ("cpu",))
    assert target.lanes("int8") == target.lanes("float32") == 1


def kernel_of(name: str, params: tuple[Buffer, ...], body: Stmt) -> Kernel:
    """A kernel of vector statements as intrinsics make them; the last parameter is its output."""
    func = PrimFunc(name, params, Block("root", (), (), (), body))
    return Kernel(name, params, (params[-1].name,), func, func)


def test_lanes_by_number(tmp_path: Path) -> None:
    """Shuffles, vector variables, and a store to what is still to be read."""
    x, y = Buffer("x", (8,)), Buffer("y", (8,))

    def four(buffer: Buffer, at: int) -> Load:
        found = load(buffer, (Ramp(const(at), const(1), 4, "int32x4"),))
        assert isinstance(found, Load)
        return found

    def at(start: int) -> Ramp:
        return Ramp(const(start), const(1), 4, "int32x4")

    pair = Var("pair", "float32x4")
    swapped = Shuffle((four(x, 0), four(x, 4)), (7, 0, 5, 2), "float32x4")
    body = seq(
        [
            Let(pair, four(x, 4) + four(x, 0), Store(y, (at(0),), swapped * pair)),
            Store(y, (at(4),), four(y, 0)),
            Store(y, (at(1),), four(y, 0)),
        ]
    )
    lib = compile_kernels("lanes", [kernel_of("lanes", (x, y), body)], mlc.Target("host"))
    given = np.arange(1, 9, dtype="float32")
    expected = np.zeros(8, "float32")
    expected[:4] = given[[7, 0, 5, 2]] * (given[4:] + given[:4])
    expected[4:] = expected[:4]
    expected[1:5] = expected[:4].copy()
    np.testing.assert_array_equal(run_lanes(lib, tmp_path, given), expected)
    with mlc.connect("local://") as board:
        tensors = [board.tensor(given), board.tensor(np.zeros(8, "float32"))]
        board.load(lib)["lanes"](*tensors)
        np.testing.assert_array_equal(tensors[1].numpy(), expected)


def run_lanes(lib: Library, folder: Path, given: Array) -> Array:
    table = "static const Call CALLS[] = {{lanes, {32, 32}, {0}, 1, 0}};\n"
    program = compiled(lib, folder, ANY_COMPILER, ["-O2"], table)
    data = given.tobytes() + bytes(32)
    done = subprocess.run([program], input=data, stdout=subprocess.PIPE, check=True)
    return np.frombuffer(done.stdout[32:], "float32")


def test_intrinsic_without_c_is_refused() -> None:
    x = Buffer("x", (4,))
    body = Evaluate(Call("arm.sdot", (const(0), const(1)), "int32"))
    lib = compile_kernels("dot", [kernel_of("dot", (x,), body)], mlc.Target("aarch64"))
    with pytest.raises(CodegenError) as refused:
        c_source(lib)
    assert str(refused.value) == (
        "no C for T.arm.sdot of int32\n"
        "  in:  dot\n"
        "  try: a schedule without that intrinsic: the one of the target 'c'"
    )
