"""Models as parts of C programs: linked in every way, run, and held against the reference."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import mlc_deploy as mlc
from mlc_deploy.artifact.export import symbol_of
from mlc_deploy.codegen.elf import read_object
from mlc_deploy.graph import BlockBuilder
from tests.artifact.models import digits, expected, images
from tests.zig import static_cc

Golden = Callable[..., None]
EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "c_program"
WARNINGS = ("-std=c11", "-Os", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target")
CROSS = {
    "aarch64": (*ZIG, "aarch64-linux-musl"),
    "arm": (*ZIG, "thumb-linux-musleabihf", "-mcpu=generic+v7a-neon+vfp3d16-d32"),
    "x86_64": (*ZIG, "x86_64-linux-musl"),
}
LINKED = {  # flags, and the type of file that they make
    "static": (("-static",), "ET_EXEC"),
    "pie": (("-fPIE", "-pie"), "ET_DYN"),
    "static pie": (("-fPIE", "-static-pie"), "ET_DYN"),
    "static pie by zig": (("-fPIE", "-pie", "-static"), "ET_DYN"),
}
DRIVER = """
#include "digits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t count(void *context, const mlc_call *call, const mlc_args *args, uint32_t index) {
    ++*(int *)context;
    if (index == 2 && getenv("STOP")) return MLC_OUT_OF_BOUNDS;
    return call->kernel(args, 0, call->tasks);
}

static void say(const char *what, int32_t status) {
    printf("%s: %s\\n", what, mlc_status_text(status));
}

int main(int argc, char **argv) {
    void *weights, *other, *in = mlc_memory_new(digits.inputs[0].bytes + 64);
    void *out = mlc_memory_new(digits.outputs[0].bytes);
    void *memory = mlc_memory_new(DIGITS_MEMORY_BYTES);
    void *inputs[] = {in}, *outputs[] = {out}, *odd[] = {(char *)in + 4}, *none[] = {NULL};
    int calls = 0;
    FILE *file = fopen(argv[1], "rb");
    if (argc < 3 || fread(in, 1, digits.inputs[0].bytes, file) != digits.inputs[0].bytes) return 2;
    fclose(file);
    say("no file", mlc_weights_read(&digits, "nowhere", &other));
    say("other file", mlc_weights_read(&digits, argv[1], &other));
    say("damaged file", mlc_weights_read(&digits, argv[3], &other));
    say("weights", mlc_weights_read(&digits, argv[2], &weights));
    say("no weights", mlc_model_run(&digits, NULL, memory, inputs, outputs));
    say("no memory", mlc_model_run(&digits, weights, NULL, inputs, outputs));
    say("no inputs", mlc_model_run(&digits, weights, memory, NULL, outputs));
    say("an input missing", mlc_model_run(&digits, weights, memory, none, outputs));
    say("unaligned", mlc_model_run(&digits, weights, memory, odd, outputs));
    say("watched", mlc_model_run_with(&digits, weights, memory, inputs, outputs, count, &calls));
    printf("%s\\n", calls == (int)digits.call_count ? "every call" : "not every call");
    printf("%s %s %zu %zu %s %zu\\n", digits.name, digits.inputs[0].name, digits.inputs[0].shape[0],
           digits.inputs[0].shape[3], digits.outputs[0].dtype, digits.outputs[0].bytes);
    memset(out, 0, digits.outputs[0].bytes);
    say("run", mlc_model_run(&digits, weights, memory, inputs, outputs));
    file = fopen("output.f32", "wb");
    fwrite(out, 1, digits.outputs[0].bytes, file);
    fclose(file);
    return 0;
}
"""


@cache
def exported(machine: str, embed_weights: bool, folder: Path) -> Path:
    """What an export of the digits writes, and images to classify."""
    to = folder / f"{machine}{embed_weights:d}"
    digits(machine).export(to, "digits", embed_weights=embed_weights)
    images().tofile(to / "images.f32")
    return to


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


def compiled(compiler: tuple[str, ...], at: Path, *arguments: str) -> Path:
    """A program, or a library, made in a folder of an export."""
    command = (*compiler, *WARNINGS, "-I", ".", *arguments, "-o", "made", "-lm")
    result = subprocess.run(command, cwd=at, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return at / "made"


def classified(program: Path, machine: str = "x86_64") -> str:
    command = [str(program), "images.f32"]
    if machine != "x86_64":
        emulator = shutil.which(f"qemu-{machine}")
        if emulator is None:
            pytest.skip("no QEMU here: apt install qemu-user")
        command.insert(0, emulator)
    run = subprocess.run(command, cwd=program.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def right() -> str:
    return " ".join(map(str, expected()["probability"].argmax(-1))) + "\n"


def gcc() -> tuple[str, ...]:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("no gcc here: apt install gcc")
    return (found,)


SOURCES = (str(EXAMPLE / "main.c"), "mlc_runtime.c", "digits.o")


def linked_program(compiler: tuple[str, ...], at: Path, linked: str) -> Path:
    flags, kind = LINKED[linked]
    made = compiled(compiler, at, *flags, *SOURCES)
    with open(made, "rb") as file:
        assert ELFFile(file)["e_type"] == kind
    return made


@pytest.mark.parametrize("linked", ["static", "pie", "static pie"])
def test_program_by_gcc(linked: str, folder: Path) -> None:
    at = exported("x86_64", False, folder)
    assert classified(linked_program(gcc(), at, linked)) == right()


def test_shared_library_by_gcc(folder: Path) -> None:
    at = exported("x86_64", False, folder)
    flags = ("-shared", "-fPIC", "-Wl,-z,text", "-Wl,-z,noexecstack")
    compiled(gcc(), at, *flags, "mlc_runtime.c", "digits.o").rename(at / "libdigits.so")
    with open(at / "libdigits.so", "rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".dynsym")
        visible = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}
    assert "digits" in visible and not any(name.startswith("digits_") for name in visible)
    program = compiled(gcc(), at, SOURCES[0], "libdigits.so", "-Wl,-rpath,.")
    assert classified(program) == right()


def test_embedded_weights_by_gcc(folder: Path) -> None:
    at = exported("x86_64", True, folder)
    assert not (at / "digits.weights").exists()
    made = compiled(gcc(), at, "-DEMBEDDED", *SOURCES, "digits_weights.o")
    assert classified(made) == right()


@pytest.mark.parametrize("machine", ["aarch64", "arm"])
def test_program_for_boards(machine: str, folder: Path) -> None:
    at = exported(machine, False, folder)
    made = compiled(static_cc(machine), at, *SOURCES)
    assert classified(made, machine) == right()


@pytest.mark.boards
@pytest.mark.parametrize("machine", CROSS)
def test_every_way_of_linking_for_boards(machine: str, folder: Path) -> None:
    """Each way has zig build another C library, a minute for the first time."""
    at = exported(machine, False, folder)
    for linked in ("static", "static pie by zig"):
        made = linked_program(CROSS[machine], at, linked)
        assert classified(made, machine) == right(), linked
    compiled(CROSS[machine], at, "-shared", "-fPIC", "mlc_runtime.c", "digits.o")
    at = exported(machine, True, folder)
    made = compiled(CROSS[machine], at, "-static", "-DEMBEDDED", *SOURCES, "digits_weights.o")
    assert classified(made, machine) == right()


def test_two_models_in_one_program(tmp_path: Path) -> None:
    for name in ("one", "two"):
        digits().export(tmp_path, name)
    (tmp_path / "main.c").write_text(
        '#include "one.h"\n#include "two.h"\n'
        "int main(void) { return one.call_count != two.call_count; }\n"
    )
    made = compiled(gcc(), tmp_path, "main.c", "mlc_runtime.c", "one.o", "two.o")
    assert subprocess.run([made]).returncode == 0


def test_what_the_executor_refuses(tmp_path: Path, golden: Golden) -> None:
    at = exported("x86_64", False, tmp_path)
    (at / "driver.c").write_text(DRIVER)
    damaged = bytearray((at / "digits.weights").read_bytes())
    damaged[100] ^= 1
    (at / "damaged.weights").write_bytes(damaged)
    made = compiled(gcc(), at, "driver.c", "mlc_runtime.c", "digits.o", "-fsanitize=undefined")
    command = [str(made), "images.f32", "digits.weights", "damaged.weights"]
    told = subprocess.run(command, cwd=at, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    golden(told.stdout, "export_driver")
    probability = expected()["probability"]
    got = np.fromfile(at / "output.f32", np.float32).reshape(probability.shape)
    np.testing.assert_allclose(got, probability, rtol=1e-4, atol=1e-6)
    stopped = subprocess.run(
        command, cwd=at, capture_output=True, text=True, env={"STOP": "1"}, check=True
    )
    assert "watched: a kernel's access lies outside its buffer\nnot every call" in stopped.stdout


def test_header(folder: Path, golden: Golden) -> None:
    text = (exported("x86_64", True, folder) / "digits.h").read_text()
    model = digits().metadata.model
    assert model is not None and f"WEIGHTS_BYTES {model.weights_bytes}\n" in text
    golden(re.sub(r"(MEMORY|WEIGHTS)_BYTES \d+", r"\1_BYTES n", text), "export_header")


def test_header_is_for_cxx_too(folder: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here: apt install g++")
    at = exported("x86_64", True, folder)
    source = '#include "digits.h"\nint main() { return digits.call_count == 0; }\n'
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-"],
        input=source, text=True, cwd=at, check=True,
    )  # fmt: skip


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm"])
def test_objects(machine: str, folder: Path) -> None:
    """Kernels go by names of the model's own that nothing outside sees; code is not written to."""
    at = exported(machine, False, folder)
    data = (at / "digits.o").read_bytes()
    elf = ELFFile(BytesIO(data))
    table: Any = elf.get_section_by_name(".symtab")
    defined = {
        s.name: s["st_other"]["visibility"]
        for s in table.iter_symbols()
        if s["st_info"]["bind"] == "STB_GLOBAL" and s["st_shndx"] != "SHN_UNDEF"
    }
    assert defined.pop("digits") == "STV_DEFAULT"
    assert set(defined) == {f"digits_{name}" for name in digits(machine).metadata.kernels}
    assert set(defined.values()) == {"STV_HIDDEN"}
    assert len([s for s in read_object(data).sections if s.name == ".data.rel.ro"]) == 1
    again = digits(machine).export(folder / f"again-{machine}", "digits").parent
    for name in ("digits.o", "digits.h", "digits.weights"):
        assert (again / name).read_bytes() == (at / name).read_bytes()


def test_names_that_c_has_not(tmp_path: Path) -> None:
    header = digits().export(tmp_path / "made", "net-1.5 (int)")
    assert header.name == "net_1_5__int_.h"
    text = header.read_text()
    assert "extern const mlc_model net_1_5__int_;" in text
    assert "#define NET_1_5__INT__INPUTS 1\n" in text


@pytest.mark.parametrize(
    ("name", "called"),
    [("double", "model_double"), ("main", "model_main"), ("mlc_runtime", "model_mlc_runtime"),
     ("3d", "model_3d"), ("net", "net")],
)  # fmt: skip
def test_names_that_are_taken(name: str, called: str) -> None:
    assert symbol_of(name) == called


def test_example_builds_itself(tmp_path: Path) -> None:
    gcc()
    command = [str(EXAMPLE / "build"), "x86_64", str(tmp_path), "gcc"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    run = subprocess.run(
        ["./classify", "images.f32", "digits.weights"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == (right(), "")


def test_the_header_names_states(tmp_path: Path) -> None:
    builder = BlockBuilder("main")
    x, h = (builder.param(name, (1, 4)) for name in ("x", "h_in"))
    after = builder.emit("add", x, h)
    function = builder.finish([builder.emit("negative", after), after], ["y", "h_out"])
    header = mlc.compile(function, "aarch64").export(tmp_path, "summing")
    text = header.read_text()
    assert " * These outputs are states" in text and " *   h_out is h_in\n" in text
    assert "SUMMING_INPUTS 1\n" in text and "SUMMING_OUTPUTS 2\n" in text
