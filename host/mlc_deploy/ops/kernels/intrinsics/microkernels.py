"""Microkernels: the instructions that sum up products of rows and columns, as register tiles use
them. The tensor intrinsic has an instruction's loop, its emission and the features that it needs.
This file has forms of operands, registers and costs. Floats have no intrinsic: LLVM finds the
instructions in loops over a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlc_targets import Target

from ....schedule.tensor_intrin import get_intrin
from ...quantize import BLOCK


@dataclass(frozen=True, slots=True)
class Counts:
    """How many registers or instructions a tile needs: for each row of each block of columns, for
    each row, for each block, and once."""

    each: float
    row: float
    block: float
    once: float

    def of(self, rows: int, blocks: int) -> float:
        return self.each * rows * blocks + self.row * rows + self.block * blocks + self.once


@dataclass(frozen=True, slots=True)
class Microkernel:
    """An instruction that adds products to sums.

    form: what it keeps sums in, and how it takes operands:
        lanes     vectors of columns; a lane of the data times a vector of weights
        squares   squares of two rows by two columns
        quads     vectors of columns; four neighbours along k are a lane of the data
        pairs     vectors of columns; two neighbours along k are a lane of the data
        parts     four parts of each sum, of neighbours along k
        windows   vectors of channels, each with data and weights of its own
    registers: of a tile. sharing: where neighbouring taps keep shared data in registers.
    instructions: of one iteration, of `depth` steps along k, for each tap; `once` for an iteration.
    by_number: whether it broadcasts the data number by number to a register, as x86-64 does. A
    row's sums then come one after the other, and taps share no data. ARM multiplies by lanes of
    vectors, which neighbouring taps share.
    registers_loaded: the CPU's registers, where it loads several at once if enough are free; else
    0, and `instructions` count the loads.
    most_blocks: of columns, in a tile.
    intrin: the tensor intrinsic, for `rows` rows and `depth` along k. columns: of a tile of packed
    weights, laid out as the layout tiles `weights` say, `o` for columns and `i` along k.
    vectors: the intrinsic that makes vectors of columns of the sums, where the form has none.
    lanes: of a vector of sums: columns, of one row or of several. data: the dtype in which it takes
    data.
    rate: multiply-accumulates per executed instruction of a convolution, copies aside:
    scripts/bench/kernels.py counts them on a Cortex-A72, A76 and i8mm, with LLVM 22. x86-64's are
    set such that costs and times have one ratio to float32's (scripts/bench/seconds.py, on an
    Emerald Rapids): an instruction of AVX2 on int8 takes less time than one on floats.
    """

    form: Literal["lanes", "squares", "quads", "pairs", "parts", "windows"]
    registers: Counts
    instructions: Counts
    sharing: Counts | None = None
    by_number: bool = False
    registers_loaded: int = 0
    most_blocks: int = 32
    intrin: str = ""
    rows: int = 1
    columns: int = BLOCK
    depth: int = BLOCK
    weights: str = ""
    vectors: str = ""
    lanes: int = 4
    data: str = "int8"
    rate: float = 0.0


# ----------------------------------------------------------------------------------------- floats

TURN = 5  # instructions of a loop's iteration, beside loads and multiply-accumulates


def of_floats(target: Target, lanes: int, depth: int = 1) -> Microkernel:
    """Vectors of columns; an iteration multiplies them by `depth` elements of the data, one by one.
    ARM loads vectors of data and multiplies by their lanes; two vectors are one load. x86-64
    broadcasts each number from memory to a register."""
    sharing, by_number = None, target.arch == "x86_64"
    if by_number:
        registers, instructions = Counts(1, 0.5, 1, 1), Counts(depth, depth, depth, TURN)
    else:
        # 32-bit ARM loads weights in pairs of registers.
        registers = Counts(1, 1, 0, 4 if target.arch == "arm" else 2)
        sharing = Counts(1, 1, 0, 4)
        instructions = Counts(depth, max(1, depth // lanes) / 2, depth / 2, TURN)
    return Microkernel(
        "lanes",
        registers,
        instructions,
        sharing,
        by_number=by_number,
        registers_loaded=target.vector_registers if target.arch == "aarch64" else 0,
        lanes=lanes,
    )


def of_words(target: Target, depth: int) -> Microkernel:
    """Sums of products of int16 in two vectors of a block of columns, on ARM. A lane of the data
    multiplies a vector of weights; two vectors are one load."""
    return Microkernel(
        "lanes",
        registers=Counts(2, 1, 0, 4 if target.arch == "arm" else 8),
        instructions=Counts(2 * depth, depth / BLOCK / 2, depth / 2, TURN),
    )


# ------------------------------------------------------------------------------------------- int8

SQUARES = Microkernel(
    "squares",
    registers=Counts(2, 0, 4, 2),
    sharing=Counts(2, 1 / 2, 4, 0),
    instructions=Counts(2, 0.3, 2.4, 4),
    most_blocks=1,
    intrin="aarch64.smmla",
    rows=2,
    weights="8o8i",
    vectors="aarch64.zip.squares",
    rate=20.0,
)
QUADS, QUADS_OF_ONE = (
    Microkernel(
        "quads",
        registers=Counts(2, 0, 2 * rows, 2),
        sharing=Counts(2, 1 / rows, 2 * rows, 0),
        instructions=Counts(4, 0.6 / rows, 2.4, 4),
        most_blocks=4,
        intrin=f"aarch64.sdot.rows{rows}",
        rows=rows,
        weights="2i8o4i",
        rate=12.0,
    )
    for rows in (2, 1)
)
PAIRS, PAIRS_OF_SSE2 = (
    Microkernel(
        "pairs",
        registers=Counts(vectors, 0, vectors, 2),
        instructions=Counts(8 * vectors, 4, 4 * vectors, 4),
        most_blocks=8,
        intrin=f"x86.pmaddwd.{BLOCK // vectors}",
        weights="4i8o2i",
        lanes=BLOCK // vectors,
        data="int16",
        rate=rate,
    )
    for vectors, rate in ((1, 20.0), (2, 6.0))
)
VNNI_ROWS, VNNI_ROW = (  # of x86-64, for unsigned data
    Microkernel(
        "quads",
        registers=Counts(1 / rows, 0, 2, 2),
        instructions=Counts(2 / rows, 3 / rows, 2, 4),
        most_blocks=4,
        intrin=f"x86.vpdpbusd.rows{rows}",
        rows=rows,
        weights="2i8o4i",
        lanes=8 * rows,
        data="uint8",
        rate=rate,
    )
    for rows, rate in ((2, 90.0), (1, 32.0))
)


def _parts(machine: str, intrin: str, depth: int, rate: float) -> Microkernel:
    per_block = 8 / depth  # an iteration is of eight channels, whatever the intrinsic takes
    return Microkernel(
        "parts",
        registers=Counts(4, 1, 0, 6 if machine == "aarch64" else 8),
        instructions=Counts(4 * (1 + 2 * per_block), per_block, 4 * per_block, 4),
        most_blocks=1,
        intrin=f"{machine}.{intrin}",
        columns=4,
        depth=depth,
        weights=f"4o{depth}i",
        vectors=f"{machine}.{'addp' if machine == 'aarch64' else 'vpadd'}.fours",
        rate=rate,
    )


PARTS = {  # single products; pairs of narrow weights, whose sum int16 holds; wide loads
    "aarch64": (
        _parts("aarch64", "smull.sadalp", 8, 2.6),
        _parts("aarch64", "smlal.sadalp", 16, 3.6),
        _parts("aarch64", "smull.sadalp.16", 16, 2.6),
    ),
    "arm": (
        _parts("arm", "vmull.vpadal", 8, 2.6),
        _parts("arm", "vmlal.vpadal", 16, 3.6),
        _parts("arm", "vmull.vpadal.16", 16, 2.6),
    ),
}

# ----------------------------------------------------------------------------- depthwise, of int8


@dataclass(frozen=True, slots=True)
class Taps:
    """How a CPU sums up the taps of a depthwise convolution. key: of targets that can. kernels: for
    one pixel, and for two. transpose: the intrinsic that turns pixels of channels into taps of
    each channel. unrolled: most iterations of the reduction whose weights stay in registers."""

    key: str
    kernels: tuple[Microkernel, Microkernel]
    transpose: str
    unrolled: int


def _windows(
    intrin: str, rows: int, depth: int, data: str, instructions: tuple[float, float] = (0, 0)
) -> Microkernel:
    """instructions: for a vector of taps, and for a result."""
    each, once = instructions
    return Microkernel(
        "windows",
        registers=Counts(0, 0, 0, 0),
        instructions=Counts(each, 0, 0, once),
        intrin=intrin,
        rows=rows,
        depth=depth,
        data=data,
    )


TAPS = {
    "aarch64": Taps(
        "arm_cpu",
        (
            _windows("aarch64.sdot.windows1", 1, 4, "int8"),
            _windows("aarch64.sdot.windows2", 2, 4, "int8"),
        ),
        "aarch64.transpose.4x8",
        3,
    ),
}
# For x86-64, the best first: kernels of interleaved rows. scripts/bench/depthwise.py counts the
# instructions of pmaddwd, with LLVM 22; those of vpdpbusd are set such that costs and times have
# one ratio to float32's, on an Emerald Rapids.
ROWS = (
    _windows("x86.vpdpbusd.windows2", 2, 4, "uint8", (1, 9)),
    _windows("x86.vpdpbusd.windows1", 1, 4, "uint8", (1, 9)),
    _windows("x86.pmaddwd.windows", 1, 2, "int16", (2, 14)),
)


# --------------------------------------------------------------------------------------- choosing


def of_int8(
    target: Target, rows: int, depth: int, narrow: bool, wide: bool = False, data: str = "int8"
) -> Microkernel | None:
    """The target's best kernel for so many rows, and elements along k; None where it has none.
    narrow: whether weights are within ±127. wide: whether weights are packed with zeros at the end
    of k, so that a load may take as much as a register holds. data: the dtype that int8
    multiplies."""
    if target.kind == "c" or not target.vector_registers:
        return None
    if data == "uint8":
        found = (VNNI_ROWS, VNNI_ROW) if rows > 1 else (VNNI_ROW,)
    elif target.arch == "x86_64":
        found = (PAIRS, PAIRS_OF_SSE2)
    elif "arm_cpu" not in target.keys:
        return None
    else:
        single, pair, long = PARTS[target.arch]
        of_parts = long if wide else pair if narrow and depth % pair.depth == 0 else single
        squares_or_quads = (SQUARES, QUADS) if rows > 1 else (QUADS_OF_ONE,)
        found = (*squares_or_quads, of_parts)
    return next((k for k in found if has(target, k)), None)


def has(target: Target, kernel: Microkernel) -> bool:
    """Whether the target has the features that the kernel's intrinsic needs."""
    needed = get_intrin(kernel.intrin).features.get(target.arch)
    return needed is not None and all(map(target.has, needed))
