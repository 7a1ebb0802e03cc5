"""Kernels and models as programs of C compilers: with sanitizers, and for the ARMs. Each program
keeps guard bytes around all that it hands over."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.codegen import Library, c_source, metadata
from mlc_rpc.extents import stored, true_shape
from mlc_targets.object_format import Model

Array = NDArray[Any]
HERE = Path(__file__).parent
STRICT = "-std=c11 -Wall -Wextra -Wconversion -Wshadow -Werror".split()
SANITIZED = "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all".split()


@dataclass(frozen=True, slots=True)
class Machine:
    """How programs are made and run. target: what LLVM compiles for."""

    target: str
    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    runner: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """A program that this computer lacks, or ""."""
        needed = (self.compiler[0], *self.runner[:1])
        return next((name for name in needed if shutil.which(name) is None), "")


GCC = Machine("x86_64", ("gcc",), tuple(SANITIZED))
CLANG = Machine("x86_64", ("clang",), (*SANITIZED, "-fsanitize=float-cast-overflow"))
HOST = Machine("x86_64", ("gcc",), ("-O1",))
ARMS = {
    name: Machine(target, (gcc,), ("-O1", "-static"), (qemu, "-cpu", cpu))
    for name, target, gcc, qemu, cpu in (
        ("armv7a", "armv7a", "arm-linux-gnueabihf-gcc", "qemu-arm", "cortex-a8"),
        (
            "cortex-a7",  # divides by an instruction
            "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7",
            "arm-linux-gnueabihf-gcc",
            "qemu-arm",
            "cortex-a7",
        ),
        ("aarch64", "aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64", "cortex-a72"),
    )
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    whole: bool  # all guard bytes are as they were
    arrays: list[Array]


def made(machine: Machine, folder: Path, sources: Sequence[Path], words: Sequence[str]) -> Path:
    """The program; warnings are errors."""
    program = folder / "program"
    command = [*machine.compiler, *STRICT, *machine.flags, f"-I{HERE}", f"-I{folder}", *words]
    done = subprocess.run(
        [*command, *map(str, sources), "-lm", "-o", str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return program


def answers(machine: Machine, program: Path, given: bytes) -> bytes:
    command = [*machine.runner, str(program)]
    done = subprocess.run(command, input=given, capture_output=True, timeout=300)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0 and not said, f"{done.returncode}\n{said[:4000]}"
    return done.stdout


# ---- Kernels ----


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel's parameters before it runs, its outputs last, and the values of its scalars."""

    arrays: list[Array]
    scalars: Mapping[str, int]


def run_kernels(
    machine: Machine, library: Library, cases: Mapping[str, Case], folder: Path, as_c: bool
) -> dict[str, Answer]:
    """Runs each kernel of the library on its case: as C, or as LLVM's object."""
    folder.mkdir()
    library.save(folder / "kernels.c")
    if not as_c:
        (folder / "kernels.c").unlink()
        library.save(folder / "kernels.o")
    (folder / "calls.h").write_text(_calls(library, cases))
    code = folder / ("kernels.c" if as_c else "kernels.o")
    program = made(machine, folder, [HERE / "kernels.c", code], ['-DKERNELS_H="kernels.h"'])
    names = [entry["name"] for entry in metadata(library)["kernels"]]
    given = b"".join(a.tobytes() for name in names for a in cases[name].arrays)
    content = answers(machine, program, given)
    found: dict[str, Answer] = {}
    for name in names:
        found[name], content = _answer(content, cases[name].arrays)
    assert content == b""
    return found


def _answer(content: bytes, like: Sequence[Array]) -> tuple[Answer, bytes]:
    """The first answer in what a program wrote, and the rest."""
    status, whole = np.frombuffer(content[:8], np.int32)
    content, arrays = content[8:], []
    for a in like:
        arrays.append(np.frombuffer(content[: a.nbytes], a.dtype).reshape(a.shape))
        content = content[a.nbytes :]
    return Answer(int(status), bool(whole), arrays), content


def _calls(library: Library, cases: Mapping[str, Case]) -> str:
    """The table of kernels.c. LLVM's objects have the kernels' own names."""
    entries = metadata(library)["kernels"]
    lines = [line.split()[1] for line in c_source(library)[1].splitlines() if line[:3] == "/* "]
    symbols = lines[-len(entries) :]
    rows = []
    for symbol, entry in zip(symbols, entries, strict=True):
        case = cases[entry["name"]]
        sizes = ", ".join(str(a.nbytes) for a in case.arrays)
        scalars = ", ".join(str(case.scalars[v]) for v in entry["scalars"]) or "0"
        tasks = case.scalars.get(str(entry["tasks"]), entry["tasks"])
        first = int(tasks) // 2 or tasks
        rows.append(
            f"{{{symbol}, {len(case.arrays)}, {{{sizes}}}, {{{scalars}}}, {tasks}, {first}, "
            f"{entry['workspace']}}},"
        )
    return "static const Call CALLS[] = {\n" + "\n".join(rows) + "\n};\n"


# ---- Models ----

Runs = Sequence[Mapping[str, Array]]  # the inputs of each run of a model
Result = tuple[Answer, dict[str, Array]]  # a run's answer, and its outputs by name, of true shapes


def run_models(
    machine: Machine, models: Sequence[tuple[mlc.CompiledModel, Runs]], folder: Path
) -> list[list[Result]]:
    """Runs models in one program: as exported C if that is their target, else as LLVM's objects.
    The runs of a model with states follow each other."""
    sources, rows, given = [HERE / "model.c", folder / "mlc_runtime.c"], [], b""
    for number, (model, runs) in enumerate(models):
        name = f"model_{number}"
        if model.target.kind == "c":
            model.export(folder, name)
            sources += sorted({folder / f"{name}.c", *folder.glob(f"{name}_*.c")})
        else:
            model.export(folder, name, embed_weights=True)
            sources += sorted({folder / f"{name}.o", *folder.glob(f"{name}_*.o")})
        weights = f"{name}_weights" if model.weights_bytes else "NULL"
        described = _described(model)
        rows.append(f"{{&{name}, {weights}, {len(runs)}, {int(bool(described.states))}}},")
        for arrays in _stored(described, runs):
            given += b"".join(
                np.ascontiguousarray(arrays[p.name]).tobytes() for p in described.inputs
            )
    headers = [f'#include "model_{number}.h"' for number in range(len(models))]
    table = [*headers, "static const Entry MODELS[] = {", *rows, "};\n"]
    (folder / "models.h").write_text("\n".join(table))
    program = made(machine, folder, sources, ['-DMODELS_H="models.h"'])
    content = answers(machine, program, given)
    found = []
    for model, runs in models:
        results, content = _results(_described(model), runs, content)
        found.append(results)
    assert content == b""
    return found


def _described(model: mlc.CompiledModel) -> Model:
    assert model.metadata.model is not None
    return model.metadata.model


def _stored(described: Model, runs: Runs) -> list[dict[str, Array]]:
    return [stored(described, dict(inputs)) for inputs in runs]


def _results(described: Model, runs: Runs, content: bytes) -> tuple[list[Result], bytes]:
    """The results of a model's runs in what a program wrote, and the rest."""
    like = [np.zeros([int(n) for n in p.shape], np.dtype(p.dtype)) for p in described.outputs]
    found: list[Result] = []
    for arrays in _stored(described, runs):
        answer, content = _answer(content, like)
        pairs = zip(described.outputs, answer.arrays, strict=True)
        outputs = {p.name: a for p, a in pairs}
        known = {**arrays, **outputs}
        sizes = {name: int(known[name]) for name in described.extents if name in known}
        results = {}
        for name, p in described.results.items() if answer.status == 0 else ():
            shape = true_shape(p, sizes)
            results[name] = outputs[name].reshape(-1)[: int(np.prod(shape))].reshape(shape)
        found.append((answer, results))
    return found, content


def skip_reason(*machines: Machine) -> str:
    lacks = [m.missing for m in machines if m.missing]
    return f"no {', '.join(lacks)} here" if lacks or sys.byteorder != "little" else ""
