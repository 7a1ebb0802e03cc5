"""Convolutions and matrix products of int8 on every level of CPU: exact against numpy, at the ends
of their ranges too, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.evaluate import evaluate as evaluate_function
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ir import Call as IrCall
from mlc_deploy.ir import IRModule, walk
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.strategy import best_plan
from mlc_targets import Target
from tests.ops.planned import laid_out, plan_for, types_of
from tests.sessions import skip_unless_runs

if TYPE_CHECKING:
    from mlc_rpc import Session

Array = NDArray[Any]
CALLS = 3  # of each kind, in one object
HERE, X86 = "local://", "llvm -mtriple=x86_64-linux-gnu"
ZERO = np.array(-9, np.int8)


@dataclass(frozen=True)
class Level:
    """ideal: multiply-accumulates of an instruction, as limits count them, on emulated boards.
    data: the dtype of what int8 is multiplied with."""

    target: str
    board: str
    machine: str
    intrinsic: str
    ideal: int = 0
    data: str = "int8"


LEVELS = {
    "i8mm": Level(
        "llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod,+i8mm",
        "qemu://max,sve=off,sme=off",
        "aarch64",
        "llvm.aarch64.neon.smmla.v4i32.v16i8",
        32,
    ),
    "dotprod": Level(
        "llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod",
        "qemu://cortex-a76",
        "aarch64",
        "llvm.aarch64.neon.sdot.v4i32.v16i8",
        16,
    ),
    "aarch64": Level("aarch64", "qemu://cortex-a72", "aarch64", "llvm.aarch64.neon.smull.v8i16", 4),
    "armv7": Level("armv7a", "qemu://cortex-a7", "arm", "llvm.arm.neon.vmulls.v8i16", 4),
    "sse2": Level("x86_64", HERE, "x86_64", "llvm.x86.sse2.pmadd.wd"),
    "avx2": Level(f"{X86} -mcpu=x86-64-v3", HERE, "x86_64", "llvm.x86.avx2.pmadd.wd"),
    "vnni": Level(f"{X86} -mcpu=cascadelake", HERE, "x86_64", "llvm.x86.avx2.pmadd.wd"),
    "vpdpbusd": Level(
        f"{X86} -mcpu=cascadelake", HERE, "x86_64", "llvm.x86.avx512.vpdpbusd.512", data="uint8"
    ),
    "vpdpbusd256": Level(
        f"{X86} -mcpu=alderlake", HERE, "x86_64", "llvm.x86.avx512.vpdpbusd.256", data="uint8"
    ),
}


OF_ONE_ROW = {"i8mm": "dotprod", "vpdpbusd": "vnni"}  # what a level does with it, where it differs


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    name: str = request.param
    of = LEVELS[name]
    if of.board == HERE:
        here: Session = request.getfixturevalue("local")
        skip_unless_runs(here, Target(of.target))
        yield name, here
        return
    with mlc.connect(of.board, machine=of.machine) as session:
        yield name, session


@dataclass(frozen=True)
class Layer:
    """An operator on int8 data and weights, and whether a bias and a requantization follow."""

    op: str
    data: Array
    weights: Array
    attrs: dict[str, Any]
    quantized: bool = False

    def __str__(self) -> str:
        return f"{self.op}({self.data.shape}, {self.weights.shape}) {self.attrs} {self.quantized}"

    def function(self, target: Target, dtype: str = "int8") -> tuple[Function, list[Array]]:
        """As a network in the middle has it, with what it is called on; dtype: of the data."""
        attrs: dict[str, Any] = {"narrow_weights": True} if self.weights.min() > -128 else {}
        attrs |= self.attrs
        data = self.data
        if dtype == "uint8":
            data = (data.astype(np.int16) + 128).astype(np.uint8)
            attrs |= {"pad_value": attrs["pad_value"] + 128} if "pad_value" in attrs else {}
        plain = (data, self.weights)
        plan = plan_for(self.op, types_of(plain), attrs, target)
        if plan is None and dtype == "uint8":  # of one row, there may be kernels of int8 alone
            return self.function(target)
        assert plan is not None and plan.packing is not None, f"{self}"
        arrays = [*laid_out(plan, plain)]
        builder = BlockBuilder("layer")
        x, w = (builder.param(f"p{n}", a.shape, str(a.dtype)) for n, a in enumerate(arrays))
        value = builder.emit(Call(self.op, (x, w), plan.attrs, plan))
        channels = plan.attrs["channels"]
        if self.quantized:
            rng = np.random.default_rng(5)
            shape: tuple[int, ...] = (channels,)
            if self.op == "conv2d":
                shape = (1, channels // 8, 1, 1, 8)
            bias = rng.integers(-3000, 3000, shape).astype(np.int32)
            scale = (rng.random(shape) / 200).astype(np.float32)
            arrays += [bias, scale]
            value = builder.emit("add", value, builder.param("bias", shape, "int32"))
            value = builder.emit("requantize", value, builder.param("scale", shape), ZERO)
        return builder.finish([value]), arrays


def numbers(rng: Random, shape: tuple[int, ...], low: int) -> Array:
    """Whole ranges of int8 from low on, a third of them at the ends."""
    drawn = np.random.default_rng(rng.randrange(1 << 30))
    values = drawn.integers(low, 128, shape)
    return np.where(drawn.random(shape) < 0.3, drawn.choice([low, 127], shape), values).astype(
        np.int8
    )


def convolution(rng: Random) -> Layer:
    groups = rng.choice((1, 1, 1, 2, 3))
    per_group, filters = 8 * rng.choice((1, 2, 3, 4)), 8 * rng.choice((1, 2, 3)) * groups
    planes = rng.random() < 0.3
    if planes:
        groups, per_group, filters = 1, rng.choice((1, 2, 3, 4)), 16
    kernel = rng.choice(((1, 1), (1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (2, 2), (7, 1), (7, 7)))
    strides = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2), (3, 3), (5, 4)))
    dilations = rng.choice(((1, 1), (1, 1), (2, 1)) if planes else ((1, 1), (2, 2), (1, 3)))
    pads = rng.choice(((0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 2, 0), (9, 0, 0, 9)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [r + rng.choice((0, 1, 2, 4, 6, 9, 12, 17)) for r in reach]
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    attrs |= {"groups": groups, "pad_value": rng.choice((0, -128, 127, 5))}
    data = numbers(rng, (rng.choice((1, 1, 2)), per_group * groups, *size), -128)
    weights = numbers(rng, (filters, per_group, *kernel), rng.choice((-127, -127, -128)))
    return Layer("conv2d", data, weights, attrs, rng.random() < 0.5)


def product(rng: Random) -> Layer:
    rows, depth, channels = rng.choice((1, 1, 2, 5, 13, 31)), rng.choice((1, 2, 5, 8)), 8
    channels *= rng.choice((1, 2, 3, 4, 12))
    transposed = rng.random() < 0.5
    shape = (channels, 8 * depth) if transposed else (8 * depth, channels)
    weights = numbers(rng, shape, rng.choice((-127, -127, -128)))
    data = numbers(rng, (rows, 8 * depth), -128)
    return Layer("dense", data, weights, {"transpose_b": transposed}, rng.random() < 0.5)


KINDS = {"convolution": convolution, "product": product}


def check(session: Session, level: Level, layers: list[Layer]) -> list[int | None]:
    """All layers in one object, each of them exact; executed instructions where counted."""
    target = mlc.Target(level.target)
    functions = [layer.function(target, level.data) for layer in layers]
    lowered = [lower_fused(f, target, f"layer{n}") for n, (f, _) in enumerate(functions)]
    for func, layer in zip(lowered, layers, strict=True):
        calls = {n.name for n in walk(func.body) if isinstance(n, IrCall)}
        others = [LEVELS[of_one].intrinsic for name, of_one in OF_ONE_ROW.items()
                  if level is LEVELS[name]]  # fmt: skip
        assert {level.intrinsic, *others} & calls, f"{layer}"
    name = "layers" if len(lowered) > 1 else lowered[0].name
    library = build(IRModule({f.name: f for f in lowered}), target=target, name=name)
    module = session.load(library)
    totals: list[int | None] = []
    wrong: list[str] = []
    for func, layer, (function, arrays) in zip(lowered, layers, functions, strict=True):
        (wanted,) = evaluate_function(function, arrays).values()
        out = session.tensor(np.zeros_like(wanted))
        given = (session.tensor(np.ascontiguousarray(a)) for a in arrays)
        run = module[func.name].profile(*given, out)
        totals.append(None if run.counts is None else run.counts[0].total)
        if not np.array_equal(out.numpy(), wanted):
            wrong.append(str(layer))
    module.close()
    assert not wrong, "\n".join(wrong)
    return totals


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_any_shape(kind: str, level: tuple[str, Session]) -> None:
    name, session = level
    check(session, LEVELS[name], [KINDS[kind](Random(f"{kind} {n}")) for n in range(CALLS)])


@pytest.mark.parametrize(("rows", "depth"), [(1, 8), (1, 16), (5, 8)])
def test_short_rows(rows: int, depth: int, level: tuple[str, Session]) -> None:
    """Of one block of elements, there is nothing to loop over."""
    name, session = level
    rng = Random(depth)
    layers = [
        Layer(
            "dense", numbers(rng, (rows, depth), -128), numbers(rng, (columns, depth), -127),
            {"transpose_b": True}, True,
        )
        for columns in (8, 128)
    ]  # fmt: skip
    check(session, LEVELS[name], layers)


def test_sums_at_the_ends_of_the_range(level: tuple[str, Session]) -> None:
    """Two products of -128 and -128 are more than an int16 holds."""
    name, session = level
    data = np.full((3, 64), -128, np.int8)
    both = (np.full((8, 64), least, np.int8) for least in (-127, -128))
    layers = [Layer("dense", data, weights, {"transpose_b": True}) for weights in both]
    check(session, LEVELS[name], layers)


def test_sums_of_several_rows_and_blocks_begin_with_a_bias(level: tuple[str, Session]) -> None:
    name, session = level
    data, weights = (numbers(Random(n), (n, 64), -127) for n in (5, 24))
    check(session, LEVELS[name], [Layer("dense", data, weights, {"transpose_b": True}, True)])


def test_copies_of_one_row(level: tuple[str, Session]) -> None:
    """What a tile of one row, or data of one column, copies has no loop over rows."""
    name, session = level
    shapes = [((1, 16, 24, 24), (32, 16, 1, 1)), ((1, 16, 9, 1), (16, 16, 3, 1))]
    layers = [
        Layer(
            "conv2d", numbers(Random(n), data, -128), numbers(Random(n), weights, -127),
            {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "groups": 1}, True,
        )
        for n, (data, weights) in enumerate(shapes)
    ]  # fmt: skip
    check(session, LEVELS[name], layers)


# Executed instructions per ideal one, all of the kernel's: with bias and requantization.
LIMITS = {
    ("3x3", "i8mm"): 1.76,
    ("3x3", "dotprod"): 1.38,
    ("3x3", "aarch64"): 0.94,
    ("3x3", "armv7"): 1.29,
    ("rows of 7", "i8mm"): 1.47,
    ("rows of 7", "dotprod"): 1.23,
    ("rows of 7", "aarch64"): 0.88,
    ("rows of 7", "armv7"): 1.16,
    ("1x1", "i8mm"): 1.55,
    ("1x1", "dotprod"): 1.26,
    ("1x1", "aarch64"): 0.95,
    ("1x1", "armv7"): 1.24,
    ("few channels", "i8mm"): 3.4,
    ("few channels", "dotprod"): 2.13,
    ("few channels", "aarch64"): 1.36,
    ("few channels", "armv7"): 1.55,
}
SIZES = {
    "3x3": ((1, 32, 14, 20), (32, 32, 3, 3)),
    "rows of 7": ((1, 128, 7, 7), (64, 128, 3, 3)),
    "1x1": ((1, 256, 6, 8), (64, 256, 1, 1)),
    "few channels": ((1, 32, 14, 14), (64, 32, 1, 1)),
}


@pytest.mark.parametrize("level", [n for n in LEVELS if LEVELS[n].ideal], indirect=True)
@pytest.mark.parametrize("kind", SIZES)
def test_instructions(kind: str, level: tuple[str, Session]) -> None:
    name, session = level
    data, weights = SIZES[kind]
    pad = weights[2] // 2
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (pad,) * 4, "groups": 1}
    rng = Random(1)
    layer = Layer("conv2d", numbers(rng, data, -128), numbers(rng, weights, -127), attrs, True)
    (total,) = check(session, LEVELS[name], [layer])
    if total is None:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    macs = data[2] * data[3] * int(np.prod(weights))
    assert total <= LIMITS[kind, name] * macs / LEVELS[name].ideal, (
        total * LEVELS[name].ideal / macs
    )


def test_what_has_no_kernel_of_its_own() -> None:
    """Channels that blocks of eight do not divide, other signs, and CPUs without vectors."""
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    target = Target("aarch64")

    def wanted(channels: int, filters: int, dtype: str = "int8", target: Target = target) -> Any:
        types = [
            TensorType((1, channels, 5, 5), dtype),
            TensorType((filters, channels, 1, 1), "int8"),
        ]
        plan = best_plan("conv2d", types, attrs, target)
        return plan and plan.packing and plan.packing.to

    assert wanted(16, 16) == "OHIW4o8i"
    assert wanted(16, 16, target=Target("x86_64")) == "OHIW4i8o2i"
    for channels, filters in ((12, 16), (16, 12)):
        assert wanted(channels, filters) is None
    assert wanted(16, 16, "uint8") is None
    assert wanted(16, 16, target=Target("llvm -mtriple=armv7a-linux-gnueabihf")) is None
