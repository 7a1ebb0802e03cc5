"""How a machine declares its tensor intrinsics, and those that AArch64 and 32-bit ARM share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ....ir import PrimFunc, Stmt
from ....schedule.tensor_intrin import TensorIntrin
from . import describe, vectors


@dataclass(frozen=True)
class Declare:
    """Adds to the intrinsics of a machine. prefix: of their names; usual: features of those that
    name none."""

    machine: str
    prefix: str
    usual: str = ""
    intrins: list[TensorIntrin] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        description: Callable[[], PrimFunc],
        implementation: Callable[..., Stmt],
        instruction: str,
        features: str = "",
        domains: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        needs = {self.machine: frozenset((features or self.usual).split())}
        self.intrins.append(
            TensorIntrin(
                f"{self.prefix}.{name}", description, implementation, needs, instruction,
                domains or {},
            )
        )  # fmt: skip


def declare_products(
    declare: Declare, neon: Callable[[str, str], vectors.Operation], v: str, end: str, by_lane: str
) -> None:
    """Dot products and matrix products of 8 bits. v: the letter before mnemonics; end and by_lane:
    what follows them in the assembly."""
    # LLVM's usdot takes the unsigned operand first; by lane, the second operand is the lane.
    for name, a, b, llvm_name, feature in (
        ("sdot", "int8", "int8", "sdot", "dotprod"),
        ("udot", "uint8", "uint8", "udot", "dotprod"),
        ("usdot", "int8", "uint8", "usdot", "i8mm"),
        ("sudot", "uint8", "int8", "usdot", "i8mm"),
    ):
        dot = neon(f"{llvm_name}.v4i32.v16i8", "int32x4")
        if name == "sudot":
            dot = vectors.swapped(dot)
        declare(
            f"{v}{name}",
            partial(describe.dot, a, b),
            vectors.dot_of_one(dot),
            rf"\b{v}[su]{{1,2}}dot{end}",
            feature,
        )
        declare(
            f"{v}{name}.lane",
            partial(describe.tile_by_lane, a, b),
            vectors.dot_by_lane(dot),
            rf"\b{v}{name}{by_lane}",
            feature,
        )
    for name, a, b in (
        ("smmla", "int8", "int8"),
        ("ummla", "uint8", "uint8"),
        ("usmmla", "uint8", "int8"),
    ):
        matrix = vectors.matrix(neon(f"{name}.v4i32.v16i8", "int32x4"))
        tile = partial(describe.tile, a, b, 2, 2, 8)
        declare(f"{v}{name}", tile, matrix, rf"\b{v}{name}{end}", "i8mm")


def declare_sums_of_four(
    declare: Declare, mull: tuple[str, vectors.Operation], padal: tuple[str, vectors.Operation],
    mlal: str, words: tuple[str, str, str],
) -> None:  # fmt: skip
    """Sums of four products each, without dot products. mull and padal: the multiplication and the
    addition of neighbours, with their names. mlal: the name of a multiplication that adds. words:
    in the assembly of 8 products, of 16, and of 16 that are added in pairs first."""
    (product, multiply), (pairs, add) = mull, padal
    of_8, of_16 = (partial(describe.dot_in_fours, n) for n in (8, 16))
    sums = vectors.dot_in_fours(multiply, add)
    apart = vectors.dot_in_fours(multiply, add, apart=True)
    columns, nibbles = vectors.columns_of_bytes(multiply), vectors.columns_of_nibbles(multiply)
    one, two, together = words
    declare(f"{product}.{pairs}", of_8, sums, one)
    declare(f"{product}.{pairs}.16", of_16, apart, two)
    declare(f"{mlal}.{pairs}", of_16, sums, together, domains=describe.NARROW)
    declare(
        f"{mlal}.columns", describe.columns_of_bytes, columns, together,
        domains=describe.NARROW_DATA,
    )  # fmt: skip
    declare(f"{mlal}.nibbles", describe.columns_of_nibbles, nibbles, together)
