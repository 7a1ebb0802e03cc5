"""How fast cores and boards are: clocks, caches, and cycles by kind of instruction.

The figures here were looked up. Those in calibrated.py were fitted to published latencies by
scripts/bench/calibration/calibrate.py, which writes that file. `speed` combines both.
docs/explanation/predictions.md describes the model that uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from . import calibrated
from .boards import board


@dataclass(frozen=True, slots=True)
class Core:
    """A core as data sheets describe it.

    in_order: an access to memory stalls the core; other cores go on with independent instructions.
    kin: cores of one kin are calibrated together. mhz, l2_kib, last_kib: of a usual board, used if
    the board's own are unknown. guess: cycles per vector instruction, per load or store, per other
    instruction, per line that the first cache fetches, and nanoseconds per line from memory; where
    nothing was fitted.
    """

    name: str
    in_order: bool
    kin: str
    l1_kib: int
    mhz: int
    l2_kib: int
    last_kib: int
    guess: tuple[float, float, float, float, float]


# name | order | kin | L1D KiB | MHz, L2 KiB, last level KiB of a usual board | the guess
# Orders, caches: Arm's technical reference manuals. The guesses' first figure is the width of the
# vector unit, from Arm's software optimization guides (A55, A57, A72, A76, A78): one 128-bit
# operation per cycle on A53 (64 bits wide, two pipes), A57, A72, A73; two on A76 and A78; the
# Cortex-A7 multiplies one number per cycle, four per vector instruction.
_CORES = """
cortex-a7  | in  | a7  | 32 | 1000 | 512  | 512  | 4.0  0.9 0.5  8 28
cortex-a53 | in  | a53 | 32 | 1400 | 512  | 512  | 1.25 0.9 0.5  5 15
cortex-a55 | in  | a53 | 32 | 1800 | 256  | 512  | 1.0  0.9 0.5  5 13
cortex-a57 | out | a57 | 32 | 1430 | 2048 | 2048 | 0.95 0.4 0.25 6 12
cortex-a72 | out | a57 | 32 | 1800 | 1024 | 1024 | 0.95 0.4 0.25 6 12
cortex-a73 | out | a57 | 32 | 2200 | 1024 | 1024 | 0.95 0.4 0.25 6 12
cortex-a76 | out | a76 | 64 | 2400 | 512  | 2048 | 0.47 0.3 0.2  4 6
cortex-a78 | out | a76 | 64 | 2200 | 256  | 2048 | 0.45 0.3 0.2  4 6
"""
_SAME = {"cortex-a78ae": "cortex-a78", "cortex-a76ae": "cortex-a76", "neoverse-n1": "cortex-a76",
         "cortex-a77": "cortex-a76"}  # fmt: skip
LINE_BYTES = 64
USUAL_GB_PER_S = 4.0  # the Raspberry Pi 4's

# chip | GB/s of its memory | core, MHz, L2 KiB, last level KiB ...
# Memory: the mean, over a chip's boards at their usual clocks, of twice memcpy's and memset's rate
# in sbc-bench (ThomasKaiser/sbc-bench, Sorted-Results.md, commit 09739cd). imx7d, imx8mm, imx93,
# am625, snapdragon410, allwinner-t527, sunrise-x3 and rz-g2l are missing there; they have two
# thirds of the data sheets' peak. Caches: data sheets, in powers of two, so a third level of 3 MiB
# counts as 2; allwinner-t527: linux-sunxi.org/A523. Clocks: those of the published latencies.
_CHIPS = """
bcm2836        |   1.6 | cortex-a7 900 512 512
bcm2837        |   1.9 | cortex-a53 1400 512 512
bcm2710a1      |   2.1 | cortex-a53 1000 512 512
bcm2711        |   4.0 | cortex-a72 1800 1024 1024
bcm2712        |  11.7 | cortex-a76 2400 512 2048
rk3328         |   4.4 | cortex-a53 1300 256 256
rk3399         |   8.0 | cortex-a72 1800 1024 1024 | cortex-a53 1500 512 512
rk3566         |   6.1 | cortex-a55 1416 512 512
rk3568         |   6.2 | cortex-a55 2000 512 512
rk3588         |  25.8 | cortex-a76 2400 512 2048 | cortex-a55 1800 128 2048
tegra210       |   8.1 | cortex-a57 1430 2048 2048
tegra234       |  25.8 | cortex-a78 2200 256 2048
imx7d          |   2.8 | cortex-a7 1000 512 512
imx8mq         |   7.2 | cortex-a53 1500 1024 1024
imx8mm         |   8.0 | cortex-a53 1800 512 512
imx8mp         |   9.0 | cortex-a53 1800 512 512
imx93          |   5.0 | cortex-a55 1700 256 256
am625          |   4.3 | cortex-a53 1400 512 512
allwinner-h3   |   2.6 | cortex-a7 1200 512 512
allwinner-h616 |   2.4 | cortex-a53 1500 256 256
allwinner-t527 |   6.4 | cortex-a55 1800 128 1024
amlogic-s905   |   3.5 | cortex-a53 1536 512 512
amlogic-s922x  |   8.2 | cortex-a73 1800 1024 1024 | cortex-a53 1900 256 256
amlogic-a311d  |   9.3 | cortex-a73 2200 1024 1024 | cortex-a53 1800 256 256
snapdragon410  |   2.8 | cortex-a53 1200 512 512
sunrise-x3     |   8.5 | cortex-a53 1500 512 512
rz-g2l         |   2.1 | cortex-a55 1200 256 256
"""

# Boards to compare, and the MiB of each board's smallest version, from the makers' pages.
_BOARDS = """
raspberry-pi/2b 1024 | raspberry-pi/zero-2w 512 | raspberry-pi/3b 1024 | raspberry-pi/4b 1024
raspberry-pi/5 2048 | rockchip/rk3328 1024 | rockchip/rk3399 2048 | rockchip/rk3566 1024
rockchip/rk3568 2048 | rockchip/rk3588 4096 | nvidia/jetson-nano 2048
nvidia/jetson-agx-orin-64gb 65536 | beagle/beagleplay 2048 | nxp/imx7d 512 | nxp/imx8mq 1024
nxp/imx8mm 1024 | nxp/imx8mp 1024 | nxp/imx93 1024 | orange-pi/one 512 | orange-pi/zero-2 512
odroid/c2 2048 | odroid/n2 2048 | khadas/vim3 2048 | qualcomm/dragonboard-410c 1024
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures from which a model's time on a core of a board is predicted.

    vector, memory, other, l1_miss: cycles per vector instruction (multiplying or not), per load or
    store, per other instruction, and per line that the first cache fetches. line_ns: nanoseconds
    per line of 64 bytes from memory, for one thread; least_ns: for all threads together. pace: a
    factor of the whole time. l2_kib and last_kib: the caches after the first. far_ns: extra cost
    of a line if memory is behind one more cache; no board here has that.
    """

    core: str
    in_order: bool
    mhz: float
    l1_kib: int
    l2_kib: int
    last_kib: int
    vector: float
    memory: float
    other: float
    l1_miss: float
    line_ns: float
    least_ns: float
    pace: float
    far_ns: float = 0.0


@cache
def _cores() -> dict[str, Core]:
    found = {}
    for line in _CORES.strip().splitlines():
        name, order, kin, l1, mhz, l2, last, guess = (part.strip() for part in line.split("|"))
        vector, memory, other, miss, line_ns = map(float, guess.split())
        cycles = vector, memory, other, miss, line_ns
        sizes = int(l1), int(mhz), int(l2), int(last)
        found[name] = Core(name, order == "in", kin, *sizes, cycles)
    return found


@dataclass(frozen=True, slots=True)
class Site:
    """The surroundings of a core on a chip: clock, caches after the first, memory rate of one
    core."""

    mhz: float
    l2_kib: int
    last_kib: int
    gb_per_s: float


@cache
def _chips() -> dict[tuple[str, str], Site]:
    """By chip and core."""
    found = {}
    for line in _CHIPS.strip().splitlines():
        chip, rate, *clusters = (part.strip() for part in line.split("|"))
        for cluster in clusters:
            name, mhz, l2, last = cluster.split()
            found[chip, name] = Site(int(mhz), int(l2), int(last), float(rate))
    return found


def core_names() -> tuple[str, ...]:
    """The names of cores whose speed is known."""
    return tuple(_cores())


def core(name: str) -> Core | None:
    """The core of LLVM's name; None if its speed is unknown."""
    return _cores().get(_SAME.get(name, name))


def site(chip: str, name: str) -> Site:
    """The site of a core on a chip; a usual board's if the chip is unknown."""
    known = core(name)
    assert known is not None
    usual = Site(known.mhz, known.l2_kib, known.last_kib, USUAL_GB_PER_S)
    return _chips().get((chip, known.name), usual)


def speed(name: str, chip: str = "", mhz: float = 0) -> Speed | None:
    """The speed of a core on a chip, at `mhz` if given; None if unknown."""
    known = core(name)
    if known is None:
        return None
    at = site(chip, name)
    vector, memory, other, l1_miss, line_ns = calibrated.CORES[known.name]
    pace, line, rate = calibrated.CHIPS.get((chip, known.name), (1.0, 1.0, 1.0))
    least_ns = LINE_BYTES / (at.gb_per_s * calibrated.REACHED * rate)
    return Speed(
        known.name, known.in_order, mhz or at.mhz, known.l1_kib, at.l2_kib, at.last_kib, vector,
        memory, other, l1_miss, line_ns * line, least_ns, pace,
    )  # fmt: skip


@cache
def _memory() -> dict[str, int]:
    """MiB by board."""
    words = (each.split() for each in _BOARDS.replace("\n", "|").split("|"))
    return {name: int(mib) for name, mib in filter(None, words)}


def predicted_boards() -> tuple[str, ...]:
    """Boards whose speed and memory are known."""
    return tuple(_memory())


def memory_mib(name: str) -> int:
    """The memory of the smallest board of a name, in any form; 0 if unknown."""
    known = {_in_any_form(each): mib for each, mib in _memory().items()}
    return known.get(_in_any_form(name), 0)


def _in_any_form(name: str) -> str:
    """A board's name without its form."""
    return board(name).name.removesuffix("-aarch64").removesuffix("-armv7a")
