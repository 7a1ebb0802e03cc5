"""Quantizing as vector code: exact at ties and at the ends, and of few instructions."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import PrimFunc, te
from mlc_deploy.codegen.saturate import saturated
from mlc_deploy.graph import BlockBuilder, Constant, Function, evaluate
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.ir import Cast, Var, const
from mlc_deploy.ir.build import broadcast
from mlc_deploy.script import from_script
from mlc_targets import Target
from tests.sessions import TARGETS, board_named, skip_unless_runs

if TYPE_CHECKING:
    from mlc_rpc import Session

Array = NDArray[Any]
SSE2 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64 -device=cpu"
CASES = {**{b: (b, TARGETS[b]) for b in ("local", "armv7", "aarch64")}, "sse2": ("local", SSE2)}
ZEROS = {"int8": (0, 3, -3, 127, -128), "uint8": (0, 1, 128, 255)}


def constant(value: float, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def sums() -> Array:
    """int32 numbers that, halved, are ties, near the ends of 8 and 16 bits, and out of range."""
    near = np.arange(-700, 700)
    far = [s * (2**n + d) for s in (1, -1) for n in range(9, 31) for d in (-1, 0, 1)]
    every = np.array([*near, *far, 2**31 - 1, -(2**31)], np.int64).astype(np.int32)
    return np.resize(every, (1, 2, 15, 17, 8))


def requantized(dtype: str, zero: int) -> Function:
    b = BlockBuilder()
    x = b.param("x", (1, 2, 15, 17, 8), "int32")
    multiplier = b.param("m", (1, 2, 1, 1, 8))
    return b.finish([b.emit("requantize", x, multiplier, constant(zero, dtype))])


def test_only_what_is_known_to_be_small_is_a_zero_point() -> None:
    """Another int16 may be so large that a sum with saturation has the wrong sign."""
    v, eight = Var("v", "int16"), Var("x", "float32x8")
    for added in (v, 0 - v.astype("int32")):
        moved = te.nearbyint(eight) + broadcast(added.astype("float32"), 8)
        least, most = (broadcast(const(end, "float32"), 8) for end in (-128, 127))
        e = te.minimum(te.maximum(moved, least), most).astype("int8")
        assert isinstance(e, Cast)
        assert saturated(e, Target("aarch64"), frozenset()) is None
        found = saturated(e, Target("aarch64"), frozenset({v}))
        assert found is not None and found.x is eight and found.known_zero is None


def board_of(case: str, request: pytest.FixtureRequest) -> tuple[Session, str]:
    """A board, and the target that it runs code for."""
    name, target = CASES[case]
    board = board_named(request, name)
    if target == SSE2:
        skip_unless_runs(board, Target(target))
    return board, target


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ZEROS)
def test_requantize(dtype: str, case: str, request: pytest.FixtureRequest) -> None:
    """Halves, wholes, and multipliers whose products are rounded."""
    multipliers = np.resize(np.array([0.5, 1, 0.5, 0.0371, 1e-3, 3e-7, 2e3, 1e30], np.float32),
                            (1, 2, 1, 1, 8))  # fmt: skip
    given = {"x": sums(), "m": multipliers}
    session, target = board_of(case, request)
    for zero in ZEROS[dtype]:
        function = requantized(dtype, zero)
        (wanted,) = evaluate(function, given).values()
        library = compiled(function, target)
        module = session.load(library)
        out = session.tensor(np.zeros_like(wanted))
        module["kernel"](*map(session.tensor, given.values()), out)
        np.testing.assert_array_equal(out.numpy(), wanted, err_msg=f"zero {zero}")
        module.close()


@pytest.mark.parametrize("cpu", ["haswell", "cascadelake"])
@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize("sign", ["+", "-"])
def test_vectors_of_whole_registers(sign: str, lanes: int, cpu: str, local: Session) -> None:
    """Of 256 bits and of 512, whatever the numbers are and whether zero points are subtracted."""
    target = Target(f"x86_64 -mcpu={cpu}")
    skip_unless_runs(local, target)
    halves = np.resize(sums().ravel(), 64 * 40).astype(np.float32) * np.float32(0.5)
    a = np.where(np.arange(halves.size) % 97 == 5, np.float32(-1e30), halves)
    a = np.where(np.arange(halves.size) % 89 == 3, np.float32(1e30), a)
    for dtype, zeros in ZEROS.items():
        low, high = (int(n) for n in (np.iinfo(dtype).min, np.iinfo(dtype).max))
        for zero in zeros:
            func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def kernel(A: T.Buffer(({a.size},), "float32"), B: T.Buffer(({a.size},), "{dtype}")):
    for k in range({a.size // lanes}):
        for i in T.vectorized({lanes}):
            B[k * {lanes} + i] = T.Cast("{dtype}", T.min(T.max(T.nearbyint(A[k * {lanes} + i])
                {sign} T.float32({zero}), T.float32({low})), T.float32({high})))
""")
            assert isinstance(func, PrimFunc)
            moved = np.rint(a).astype(np.float64) + (zero if sign == "+" else -zero)
            wanted = np.clip(moved, low, high).astype(dtype)
            with closing(local.load(mlc.build(func, target=target))) as module:
                x, out = local.tensor(a), local.tensor(np.zeros_like(wanted))
                module["kernel"](x, out)
                np.testing.assert_array_equal(out.numpy(), wanted, err_msg=f"{dtype} {zero}")


def compiled(function: Function, target: str) -> Any:
    to = Target(target)
    return mlc.build(lower_fused(function, to, "kernel"), target=to)


def residual(shape: tuple[int, ...]) -> Function:
    """quantize(dequantize(x) + dequantize(y)), with scales whose products are rounded."""
    b = BlockBuilder()
    x, y = b.param("x", shape, "int8"), b.param("y", shape, "int8")
    parts = (
        b.emit("dequantize", v, constant(scale, "float32"), constant(zero, "int8"))
        for v, scale, zero in ((x, 0.0123, 3), (y, 0.0456, -128))
    )
    total = b.emit("add", *parts)
    scale, zero = constant(0.0333, "float32"), constant(-5, "int8")
    return b.finish([b.emit("quantize", total, scale, zero)])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(1, 8, 16, 64, 8), (256, 256), (3, 11)], ids=str)
def test_sums_are_rounded_as_numpy_rounds(
    shape: tuple[int, ...], case: str, request: pytest.FixtureRequest
) -> None:
    """Every pair of numbers: no multiply-add that rounds once, no reciprocal for a division."""
    every = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2), -1).reshape(-1, 2).astype(np.int8)
    size = int(np.prod(shape))
    given = {n: every[:size, k].reshape(shape) for k, n in enumerate("xy")}
    function = residual(shape)
    (wanted,) = evaluate(function, given).values()
    session, target = board_of(case, request)
    module = session.load(compiled(function, target))
    out = session.tensor(np.zeros_like(wanted))
    module["kernel"](*map(session.tensor, given.values()), out)
    np.testing.assert_array_equal(out.numpy(), wanted)


# Of one vector of eight sums: instructions, and how often each is wanted.
WANTED = {
    "aarch64": {"scvtf": 2, "fmul": 2, "fcvtns": 2, "sqxtn": 2, "sqxtn2": 1, "sqadd": 1},
    "sse2": {"cvtdq2ps": 2, "mulps": 2, "minps": 2, "cvtps2dq": 2, "packssdw": 1, "paddsw": 1},
    "armv7": {"vcvt.f32.s32": 2, "vqsub.s32": 2, "vqmovn.s32": 2, "vqmovn.s16": 1},
}


@pytest.mark.parametrize("case", WANTED)
def test_instructions_of_a_vector(case: str, tmp_path: Path) -> None:
    library = compiled(requantized("int8", 3), CASES[case][1])
    library.save(tmp_path / "kernel.s")
    text = (tmp_path / "kernel.s").read_text()
    made = re.findall(r"^\s+([a-z][\w.]+)", text, re.MULTILINE)
    counts = {name: made.count(name) for name in WANTED[case]}
    assert counts == WANTED[case]
    assert not re.search(
        r"\b(frintn|fcvtzs|fmax|fmin|vabs\.f32|(bl|callq?)\s+(?!kernel\.body))\b", text
    )
