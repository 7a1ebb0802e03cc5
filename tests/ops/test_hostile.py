"""Hostile indices: every operator that addresses memory by run-time values, on every machine.

The models are linked into a C program with guard bytes around all memory that it gives them. After
each run the guard bytes and the inputs are as they were; status and outputs are the reference's.

`scripts/test --only hostile` draws 2,000 inputs of each.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copy

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.errors import InputError
from mlc_deploy.graph import evaluate
from mlc_deploy.ir import Let, Load, Node, PrimFunc, Store, Var, walk
from mlc_deploy.ops import OWN_OPERATORS, compute
from mlc_deploy.ops.indices import BAD_EXTENT, BAD_INDEX
from tests.artifact.test_export import gcc
from tests.ops.awkward_calls import DRAWS, drawn
from tests.ops.hostile_calls import Hostile, Inputs, cases
from tests.ops.operator_calls import Array
from tests.runtime.test_run_command import emulated
from tests.zig import static_cc

CASES = cases()
MACHINES = {"local": "x86_64", "c": "x86_64", "armv7": "arm", "aarch64": "aarch64"}
TARGETS = {"local": "host", "c": "c", "armv7": "armv7a", "aarch64": "aarch64"}
FEW, MANY = 12, 2000
# The sanitizers see reads outside of memory, too. C's own models are for any compiler.
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class Answer:
    """What a run is to end with: outputs, or None for a status that refuses the input."""

    inputs: Inputs
    outputs: tuple[Array, ...] | None


@cache
def answers(name: str, count: int) -> tuple[Answer, ...]:
    case = CASES[name]
    return tuple(answer(case, number) for number in range(count))


def answer(case: Hostile, number: int) -> Answer:
    inputs = case.inputs(number)
    try:
        return Answer(inputs, tuple(evaluate(case.function, inputs).values()))
    except InputError:
        return Answer(inputs, None)


# --------------------------------------------------------------------------------- the program in C


def program(target: str, to: Path) -> list[str]:
    """The command that runs all models of a target, in a folder of their own."""
    files, weights, ending = [], [], "c" if target == "c" else "o"
    for name, case in CASES.items():
        made = mlc.compile(case.function, TARGETS[target], workers=1)
        made.export(to, name, embed_weights=target != "c")  # C has them embedded always
        own = f"{name}_weights" if made.weights_bytes else ""
        files += [f"{n}.{ending}" for n in (name, own) if n]
        weights.append(own or "0")
    includes = "".join(f'#include "{name}.h"\n' for name in CASES)
    every = ", ".join(f"&{name}" for name in CASES)
    (to / "models.h").write_text(
        f"{includes}enum {{ MODEL_COUNT = {len(CASES)} }};\n"
        f"static const mlc_model *const models[] = {{{every}}};\n"
        f"static const unsigned char *const weights[] = {{{', '.join(weights)}}};\n"
    )
    copy(Path(__file__).with_name("hostile_driver.c"), to)
    machine = MACHINES[target]
    compiler = (*gcc(), "-g") if machine == "x86_64" else static_cc(machine)
    flags = SANITIZED if target == "c" else ()
    command = (*compiler, *flags, "-std=c11", "-I.", "hostile_driver.c", "mlc_runtime.c", *files)
    built = subprocess.run((*command, "-o", "made", "-lm"), cwd=to, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return [*emulated(machine), str(to / "made")]


def runs(
    command: Sequence[str], at: Path, given: Sequence[tuple[str, Answer]]
) -> Iterator[tuple[int, int, list[Array]]]:
    """The status, the block that was written to, and the outputs of each run."""
    numbers = {name: number for number, name in enumerate(CASES)}
    with open(at / "inputs", "wb") as file:
        for name, one in given:
            file.write(struct.pack("<I", numbers[name]))
            file.writelines(np.ascontiguousarray(a).tobytes() for a in one.inputs.values())
    ended = subprocess.run(
        [*command, "inputs", "outputs"], cwd=at, capture_output=True, text=True, timeout=1800
    )
    content, at_byte = (at / "outputs").read_bytes(), 0
    for name, one in given:
        if at_byte + 8 > len(content):
            said = f"{ended.returncode}: {ended.stderr[-3000:]}"
            pytest.fail(f"{name}: the program ended, {said}\n{one.inputs}")
        status, wrong = struct.unpack_from("<iI", content, at_byte)
        at_byte += 8
        outputs = []
        for value in CASES[name].function.outputs:
            array = np.frombuffer(content, value.type.dtype, value.type.elements, at_byte)
            outputs.append(array.reshape(value.type.sizes))
            at_byte += value.type.bytes
        yield status, wrong, outputs
    assert ended.returncode == 0 and at_byte == len(content), ended.stderr


def like(got: Array, right: Array) -> bool:
    """Equal integers; floats to rounding, infinities and what is no number in the same places."""
    if right.dtype.kind != "f":
        return np.array_equal(got, right)
    most = float(np.abs(right[np.isfinite(right)]).max(initial=1))
    return np.allclose(got, right, 1e-4, 2e-5 * most, equal_nan=True)


def check(target: str, at: Path, count: int) -> None:
    command = program(target, at)
    given = [(name, one) for name in CASES for one in answers(name, count)]
    bad: list[str] = []
    refused = 0
    for (name, one), (status, wrong, outputs) in zip(given, runs(command, at, given), strict=True):
        said = f"{name} on {target}: {one.inputs}"
        if wrong:
            bad.append(f"{said}\nmemory {wrong - 1} was written to")
        if one.outputs is None:
            refused += 1
            if status not in (BAD_EXTENT, BAD_INDEX):
                bad.append(f"{said}\nstatus {status} for an input that the reference refuses")
        elif status != 0:
            bad.append(f"{said}\nstatus {status}")
        elif CASES[name].compared(one.inputs):
            for got, right in zip(outputs, one.outputs, strict=True):
                if not like(got, right):
                    bad.append(f"{said}\ngot {got}\nnot {right}")
    assert not bad, f"{len(bad)} of {len(given)}\n" + "\n\n".join(bad[:5])
    assert len(given) // 20 < refused < len(given) // 2  # the inputs are of every sort


@pytest.mark.parametrize("target", TARGETS)
def test_memory_stays_whole(target: str, tmp_path: Path) -> None:
    check(target, tmp_path, FEW)


@pytest.mark.hostile
@pytest.mark.parametrize("target", TARGETS)
def test_memory_stays_whole_over_many(target: str, tmp_path: Path) -> None:
    check(target, tmp_path, MANY)


# --------------------------------------------------------------------------------- which operators


def addresses_by_values(func: PrimFunc) -> bool:
    """Whether a load or store stands at an index that was loaded."""
    loaded: set[Var] = set()

    def by_value(e: Node) -> bool:
        return any(isinstance(n, Load) or n in loaded for n in walk(e))

    every = list(walk(func.body))
    for n in every:  # a variable's value comes before its uses
        if isinstance(n, Let) and by_value(n.value):
            loaded.add(n.var)
    places = (n for n in every if isinstance(n, (Load, Store)))
    return any(by_value(i) for n in places for i in n.indices)


def test_every_operator_that_addresses_by_values() -> None:
    """Found in the loops of the operators' definitions, for random calls of all of them."""
    found = set()
    for op in DRAWS:
        for number in range(6):
            call = drawn(op, number)
            given = [te.placeholder(t.shape, t.dtype, f"p{n}") for n, t in enumerate(call.types)]
            made = [t for t in compute(op, given, call.attrs) if t not in given]
            if addresses_by_values(te.create_prim_func([*given, *made], "call")):
                found.add(op)
    assert found - {case.op for case in CASES.values()} == set()
    assert {"gather", "scatter_nd", "append_rows", "top_k"} <= found  # the search finds them
    assert OWN_OPERATORS <= set(DRAWS)
