"""What stands in the objects: instructions, sections, metadata; the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen import Library
from mlc_deploy.driver.workers import WorkerPool
from mlc_deploy.errors import CodegenError
from mlc_deploy.schedule import Schedule
from mlc_targets import Target
from tests.driver.worker_tasks import grown_by_builds
from tests.sessions import TARGETS, board_named

NEON = "llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon -device=arm_cpu"
NO_NEON = "llvm -mtriple=armv7a-linux-gnueabihf -device=arm_cpu"


def addition(dtype: str = "float32", shape: tuple[int, ...] = (1, 1024)) -> list[te.Tensor]:
    x = te.placeholder(shape, dtype, "x")
    return [x, te.compute(shape, lambda *i: x[i] + x[i], name="y")]


def instructions(library: Library) -> list[str]:
    """The mnemonics and operands of the code, without directives and labels."""
    lines = (line.strip() for line in library.assembly.splitlines())
    code = [line for line in lines if line and not line.startswith((".", "@", "//"))]
    return [re.sub(r"\s+", " ", line) for line in code if not line.endswith(":")]


def counted(code: list[str], pattern: str) -> int:
    return sum(re.match(pattern, line) is not None for line in code)


# ------------------------------------------------------------------------------ add(x, x) on ARM


VECTORS = 4  # that the default schedule computes in one turn


def test_add_with_neon_is_vectors_only() -> None:
    code = instructions(mlc.build(addition(), target=NEON))
    assert counted(code, r"vadd\.f32 q\d+, q\d+, q\d+") == VECTORS
    assert counted(code, r"vld1\.\d+ \{d\d+, d\d+, d\d+, d\d+\}") == VECTORS // 2
    assert counted(code, r"vst1\.\d+ \{d\d+, d\d+\}") == VECTORS
    assert counted(code, r"v.*\bs\d+") == 0, "scalar float code"
    assert counted(code, r"vldr|vstr") == 0


def test_add_without_neon_has_none() -> None:
    library = mlc.build(addition(), target=NO_NEON)
    code = instructions(library)
    assert counted(code, r"vadd\.f32 s\d+, s\d+, s\d+") >= 1
    assert counted(code, r".*\bq\d+") == 0
    assert counted(code, r"vld1|vst1") == 0
    assert "neon" not in metadata_of(library)["features"]


def test_add_on_aarch64_is_four_floats() -> None:
    code = instructions(mlc.build(addition(), target="aarch64"))
    assert counted(code, r"fadd v\d+\.4s, v\d+\.4s, v\d+\.4s") == VECTORS
    assert counted(code, r"fadd s\d+") == 0
    assert counted(code, r"ldp q\d+") == counted(code, r"stp q\d+") == VECTORS // 2


@pytest.mark.parametrize(
    ("dtype", "aarch64", "armv7"),
    [
        ("int8", r"add v\d+\.16b|shl v\d+\.16b", r"vadd\.i8 q\d+|vshl\.i8 q\d+"),
        ("int16", r"add v\d+\.8h|shl v\d+\.8h", r"vadd\.i16 q\d+|vshl\.i16 q\d+"),
        ("int32", r"add v\d+\.4s|shl v\d+\.4s", r"vadd\.i32 q\d+|vshl\.i32 q\d+"),
    ],
)
def test_lanes_fill_a_register(dtype: str, aarch64: str, armv7: str) -> None:
    for target, pattern in (("aarch64", aarch64), ("armv7a", armv7)):
        assert counted(instructions(mlc.build(addition(dtype), target=target)), pattern) == VECTORS


def test_float16_adds_eight_lanes_where_the_cpu_has_it() -> None:
    code = instructions(
        mlc.build(addition("float16"), target="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")
    )
    assert counted(code, r"fadd v\d+\.8h, v\d+\.8h, v\d+\.8h") == VECTORS


@pytest.mark.parametrize("board", TARGETS)
def test_add_is_right(board: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    module = session.load(mlc.build(addition(), target=TARGETS[board]))
    x = np.arange(1024, dtype=np.float32).reshape(1, 1024)
    given, out = session.tensor(x), session.tensor(np.zeros_like(x))
    module["main"](given, out)
    np.testing.assert_array_equal(out.numpy(), x + x)


# ------------------------------------------------------------------------------ accesses by lanes


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16"])
def test_strided_and_reversed_lanes(board: str, dtype: str, request: pytest.FixtureRequest) -> None:
    """Loads and stores whose lanes are no neighbours."""
    session = board_named(request, board)
    x = te.placeholder((64,), dtype, "x")
    every = te.compute((32,), lambda i: x[i * 2 + 1], name="every")
    third = te.compute((21,), lambda i: x[i * 3], name="third")
    back = te.compute((64,), lambda i: x[63 - i], name="back")
    same = te.compute((16,), lambda i: x[5], name="same")
    sch = Schedule(te.create_prim_func([x, every, third, back, same]))
    for block in ("every", "third", "back", "same"):
        (loop,) = sch.get_loops(block)
        _, lane = sch.split(loop, [None, 8])
        sch.vectorize(lane)
    module = session.load(mlc.build(sch, target=TARGETS[board]))
    data = (np.arange(64) % 2).astype(bool) if dtype == "bool" else np.arange(64).astype(dtype)
    expected = [data[1::2], data[::3][:21], data[::-1], np.full(16, data[5])]
    outs = [session.tensor(np.zeros_like(e)) for e in expected]
    module["main"](session.tensor(data), *outs)
    for out, e in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(out.numpy(), e)


# ------------------------------------------------------------------------------ what an object says


def metadata_of(library: Library) -> dict[str, Any]:
    elf = ELFFile(io.BytesIO(library.object_bytes))
    section: Any = elf.get_section_by_name(".mlc")
    found: dict[str, Any] = msgpack.unpackb(section.data())
    return found


def test_metadata() -> None:
    n = te.var("n")
    x, w = te.placeholder((n, 300), name="x"), te.placeholder((300,), "float32", "w")
    t = te.compute((300,), lambda j: w[j] * 2, name="t")
    y = te.compute((n, 300), lambda i, j: x[i, j] + t[j], name="y")
    sch = Schedule(te.create_prim_func([x, w, y], "scale"))
    sch.annotate("t", "kept", 1)  # one step, so that it is built as it stands
    assert metadata_of(mlc.build(sch, target="armv7a")) == {
        "abi": 1,
        "target": str(mlc.Target("armv7a")),
        "machine": "arm",
        "features": sorted(mlc.Target("armv7a").required_features),
        "kernels": [
            {
                "name": "scale",
                "params": [
                    {"name": "x", "dtype": "float32", "shape": ["n", 300], "output": False},
                    {"name": "w", "dtype": "float32", "shape": [300], "output": False},
                    {"name": "y", "dtype": "float32", "shape": ["n", 300], "output": True},
                ],
                "scalars": ["n"],
                "tasks": 1,
                "workspace": 1216,  # 300 floats, in whole 64 bytes
            }
        ],
    }


def test_a_parallel_loop_is_the_tasks() -> None:
    x = te.placeholder((7, 64), name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((7, 64), lambda i, j: x[i, j] + 1)]))
    sch.parallel("i")
    assert metadata_of(mlc.build(sch, target="aarch64"))["kernels"][0]["tasks"] == 7


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_objects_link_anywhere(target: str) -> None:
    """Kernels are global; nothing else is; no unwind tables, no writable data."""
    elf = ELFFile(io.BytesIO(mlc.build(addition(), target=target, name="add").object_bytes))
    symbols: Any = elf.get_section_by_name(".symtab")
    globals_ = [s.name for s in symbols.iter_symbols() if s["st_info"]["bind"] == "STB_GLOBAL"]
    assert globals_ == ["add"]
    names = {s.name for s in elf.iter_sections()}
    assert not names & {".eh_frame", ".got", ".init_array", ".tdata"}
    for s in elf.iter_sections():
        assert s.name not in (".data", ".bss") or s["sh_size"] == 0


@pytest.mark.parametrize("target", ["aarch64", NEON])
def test_a_kernel_is_one_function(target: str) -> None:
    """Its body is inlined; of the kernels that share one, none has a copy (test_sharing.py)."""
    elf = ELFFile(io.BytesIO(mlc.build(addition(), target=target, name="add").object_bytes))
    symbols: Any = elf.get_section_by_name(".symtab")
    assert [s.name for s in symbols.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"] == ["add"]


SEEDED = """
import hashlib
import mlc_deploy as mlc
from tests.schedule.draws import drawn_schedule
from mlc_deploy.codegen import compile_kernels
for target in map(mlc.Target, ("aarch64", "armv7a")):
    kernels = [drawn_schedule(s).kernel(f"k{s}", target) for s in range(6)]
    data = compile_kernels("same", kernels, target).object_bytes
    print(hashlib.sha256(data).hexdigest())
"""


def test_objects_are_the_same_bytes_for_any_hash_seed() -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / p) for p in (".", "host", "rpc", "targets"))
    found = {
        subprocess.run(
            [sys.executable, "-c", SEEDED],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(found) == 1
    assert len(found.pop().split()) == 2


# ----------------------------------------------------------------------------------------- saving


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell resident bytes")
def test_compiling_leaves_no_memory_behind() -> None:
    """What LLVM's passes keep for a kernel of 512 copies is more than a megabyte."""
    k = te.reduce_axis((0, 64), "k")
    a, b = (te.placeholder((64, 64), "float32", name) for name in "ab")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k.var] * b[k.var, j], k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c], "tiles"))
    for loop in sch.get_loops("c"):
        sch.unroll(sch.split(loop, [None, 8])[1])
    with WorkerPool(1) as pool:
        grown = pool.submit(grown_by_builds, sch.func, Target("aarch64"), 8).result()
    assert isinstance(grown, int) and grown < 4e6


def test_save_by_suffix(tmp_path: Path) -> None:
    library = mlc.build(addition(), target="aarch64", name="add")
    assert library.save(tmp_path / "add.o").read_bytes()[:4] == b"\x7fELF"
    assert "fadd" in library.save(tmp_path / "add.s").read_text()
    assert "define" in library.save(tmp_path / "add.ll").read_text()
    assert hashlib.sha256((tmp_path / "add.o").read_bytes()).digest() == (
        hashlib.sha256(library.object_bytes).digest()
    )


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CodegenError, match=r"no format is known by the suffix '\.exe'"):
        mlc.build(addition(), target="aarch64").save(tmp_path / "add.exe")


def test_two_kernels_of_one_name_are_refused() -> None:
    kernel = mlc.lower(te.create_prim_func(addition()))
    with pytest.raises(CodegenError, match="two kernels are called 'main'"):
        mlc.codegen.compile_kernels("twice", [kernel, kernel], mlc.Target("aarch64"))


def test_a_symbolic_scratch_buffer_is_refused() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    t = te.compute((n,), lambda i: x[i] * 2, name="t")
    sch = Schedule(te.create_prim_func([x, te.compute((n,), lambda i: t[i] + 1, name="y")]))
    sch.annotate("t", "kept", 1)
    with pytest.raises(CodegenError) as caught:
        _ = mlc.build(sch, target="aarch64").object_bytes
    assert str(caught.value) == (
        "scratch buffer 't' has n elements, which is not a constant\n"
        "  in:  main\n"
        "  try: compute it inside a loop whose iterations need a constant part of it"
    )
