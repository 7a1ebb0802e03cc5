"""Every operator of every dtype, as compiled code on every kind of board."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import mlc_deploy as mlc
from mlc_deploy.codegen import Library
from mlc_deploy.driver.build import build
from mlc_deploy.errors import CodegenError
from mlc_deploy.ir import IRModule, call
from mlc_deploy.ir.interp import run
from mlc_targets import Target
from tests.codegen.operators import (
    EXACT,
    NUMBERS,
    Array,
    Case,
    all_cases,
    binary_cases,
    call_cases,
    cast_cases,
    compare_cases,
    select_cases,
)
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

GROUPS = {
    "binary": binary_cases,
    "compare": compare_cases,
    "select": select_cases,
    "cast": cast_cases,
    "call": call_cases,
}


OF_SMALL = 4e-5  # the most that a sigmoid near 0 is off, where the CPU computes in float16


def library_of(cases: Sequence[Case], target: str) -> Library:
    return build(IRModule({c.name: c.program() for c in cases}), target=target, name="operators")


def expected(case: Case, operands: Sequence[Array]) -> Array:
    program = case.program()
    out = np.zeros(NUMBERS, program.buffers[-1].dtype)
    run(program, *[a.copy() for a in operands], out)
    return out


def on_board(board: Session, function: Any, operands: Sequence[Array], out: Array) -> Array:
    tensors = [board.tensor(a) for a in (*operands, out)]
    function(*tensors)
    result: Array = tensors[-1].numpy()
    for tensor in tensors:
        tensor.close()
    return result


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("board", TARGETS)
def test_operators(board: str, group: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    cases = list(GROUPS[group]())
    module = session.load(library_of(cases, TARGETS[board]))
    wrong = []
    for case in cases:
        operands = case.operands()
        wanted = expected(case, operands)
        actual = on_board(session, module[case.name], operands, np.zeros_like(wanted))
        near = close(case, actual, wanted, operands)
        if case.name == "sigmoid_float16" and Target(TARGETS[board]).float16 == "arithmetic":
            near |= np.abs(actual - wanted) <= OF_SMALL  # as test_math.py has it
        if board == "armv7" and wanted.dtype in (np.float32, np.float64):
            tiny = np.finfo(wanted.dtype).tiny  # smaller numbers are 0 there
            near |= (actual == 0) & (np.abs(wanted) < tiny)
        off = ~near
        if off.any():
            at = int(np.flatnonzero(off)[0])
            given = [a[at] for a in operands]
            wrong.append(f"{case.name}{given}: {actual[at]}, not {wanted[at]} ({off.sum()} such)")
    module.close()
    assert not wrong, "\n".join(wrong)


def close(case: Case, actual: Array, wanted: Array, operands: Sequence[Array]) -> Array:
    """Where the result is as it should be: equal, or as near as the case allows."""
    if wanted.dtype.kind != "f":
        return np.asarray(actual == wanted)
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        if case.name.startswith("fma"):  # rounded once or twice
            x, y, _ = (a.astype(np.float64) for a in operands)
            step = np.spacing(np.abs(x * y).astype(wanted.dtype)) + np.spacing(np.abs(wanted))
            return np.asarray(same | (np.abs(actual - wanted) <= step))
        if case.name.rpartition("_")[0] in EXACT:
            same &= np.isnan(wanted) | (np.signbit(actual) == np.signbit(wanted))
        if case.ulps:
            step = np.spacing(np.abs(wanted)).astype(np.float64)
            error = np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
            same |= error <= case.ulps * step
    return np.asarray(same)


def undefined(library: Library) -> set[str]:
    elf = ELFFile(io.BytesIO(library.object_bytes))
    symbols: Any = elf.get_section_by_name(".symtab")
    return {s.name for s in symbols.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_float32_functions_call_nothing(target: str) -> None:
    """What has vector code here never goes to the C library."""
    own = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", *EXACT)
    cases = [c for c in all_cases() if c.name.endswith("_float32") and c.name[:-8] in own]
    assert len(cases) == len(own)
    assert undefined(library_of(cases, target)) == set()


@pytest.mark.parametrize("target", ["host", "aarch64"])
def test_only_these_call_the_c_library(target: str) -> None:
    cases = list(call_cases())
    names = "exp expm1 log log1p sin cos tan tanh erf fmod sinf cosf tanf fmodf powf".split()
    helpers = {"__extendhfsf2", "__truncsfhf2", "__truncdfhf2"}  # float16 on x86-64 without F16C
    assert undefined(library_of(cases, target)) - helpers == set(names)


def test_a_function_without_code_is_refused() -> None:
    case = Case("root", ("float32",), lambda x: call("cbrt", "float32", x), list)
    with pytest.raises(CodegenError) as caught:
        _ = mlc.build(case.program(), target="aarch64").object_bytes
    assert str(caught.value) == (
        'no code for T.cbrt of float32\n  in:  root\n  try: .astype("float32")'
    )
