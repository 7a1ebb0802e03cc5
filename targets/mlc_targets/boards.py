"""Boards as data: what a board's name means to the compiler.

A board that runs both 32- and 64-bit programs has two names, NAME-aarch64 and NAME-armv7a; NAME
alone is the 64-bit form. The aliases include TVM's names, of `tvm.target.arm_cpu` models and of
target tags. They mean the real board, even where TVM describes it wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from .errors import TargetError, suggest

Form = Literal["armv7a", "aarch64"]
_TRIPLES: dict[Form, str] = {
    "armv7a": "armv7a-unknown-linux-gnueabihf",
    "aarch64": "aarch64-unknown-linux-gnu",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """`count` equal cores; `cpu` is LLVM's name."""

    cpu: str
    count: int


@dataclass(frozen=True, slots=True)
class Board:
    """A board in one of its forms. Code is compiled for `mcpu`, the fastest cores; all cores run
    it."""

    name: str
    model: str
    clusters: tuple[Cluster, ...]
    form: Form
    mattr: tuple[str, ...] = ()

    @property
    def mcpu(self) -> str:
        return self.clusters[0].cpu

    @property
    def num_cores(self) -> int:
        return sum(cluster.count for cluster in self.clusters)

    @property
    def mtriple(self) -> str:
        return _TRIPLES[self.form]


# name | chip | cores, fastest first | forms (both: aarch64 is preferred) | aliases, ALIAS[:form]
_TABLE = """
raspberry-pi/2b          | bcm2836 | cortex-a7*4      | armv7a | rasp2b
raspberry-pi/3b          | bcm2837 | cortex-a53*4     | both | rasp3b:armv7a rasp3b64 \
raspberry-pi/3b-plus raspberry-pi/3a-plus raspberry-pi/cm3
raspberry-pi/zero-2w     | bcm2710a1 | cortex-a53*4   | both | raspberry-pi/zero2w rasp02w
raspberry-pi/4b          | bcm2711 | cortex-a72*4     | both | rasp4b:armv7a rasp4b64 \
raspberry-pi/400 raspberry-pi/cm4
raspberry-pi/5           | bcm2712 | cortex-a76*4     | both | raspberry-pi/5b rasp5b rasp5 \
raspberry-pi/500 raspberry-pi/cm5
rockchip/rk3288          | rk3288  | cortex-a17*4     | armv7a | rk3288 asus/tinker-board
rockchip/rk3328          | rk3328  | cortex-a53*4     | both | rk3328 pine64/rock64
rockchip/rk3399          | rk3399  | cortex-a72*2 cortex-a53*4 | both | rk3399 \
pine64/rockpro64 pine64/pinebook-pro radxa/rock-pi-4 firefly/rk3399
rockchip/rk3566          | rk3566  | cortex-a55*4     | both | rk3566 pine64/quartz64 \
orange-pi/3b radxa/zero-3
rockchip/rk3568          | rk3568  | cortex-a55*4     | both | rk3568 radxa/rock-3a odroid/m1
rockchip/rk3588          | rk3588  | cortex-a76*4 cortex-a55*4 | both | rk3588 rk3588s \
radxa/rock-5b orange-pi/5 orange-pi/5-plus nanopi/r6s odroid/m2
nvidia/jetson-tk1        | tegra124 | cortex-a15*4    | armv7a |
nvidia/jetson-nano       | tegra210 | cortex-a57*4    | aarch64 | jetson-nano nvidia/jetson-tx1 \
jetson-tx1
nvidia/jetson-tx2        | tegra186 | cortex-a57*4    | aarch64 | jetson-tx2
nvidia/jetson-agx-xavier | tegra194 | carmel*8        | aarch64 | jetson-agx-xavier jetson-xavier
nvidia/jetson-xavier-nx  | tegra194 | carmel*6        | aarch64 | jetson-xavier-nx
nvidia/jetson-agx-orin-64gb | tegra234 | cortex-a78ae*12 | aarch64 | nvidia/jetson-agx-orin \
jetson-agx-orin jetson-orin
nvidia/jetson-agx-orin-32gb | tegra234 | cortex-a78ae*8 | aarch64 | nvidia/jetson-orin-nx \
jetson-orin-nx
nvidia/jetson-orin-nano  | tegra234 | cortex-a78ae*6  | aarch64 | jetson-orin-nano
beagle/beaglebone-black  | am3358  | cortex-a8        | armv7a | beaglebone-black beaglebone
beagle/beaglebone-ai     | am5729  | cortex-a15*2     | armv7a | beagleai
beagle/beaglebone-ai-64  | tda4vm  | cortex-a72*2     | aarch64 | beagleai64
beagle/beagleplay        | am625   | cortex-a53*4     | aarch64 | beagleplay
beagle/beagley-ai        | am67a   | cortex-a53*4     | aarch64 | beagley-ai
st/stm32mp1              | stm32mp157 | cortex-a7*2   | armv7a | stm32mp1 stm32mp157 st/stm32mp157
st/stm32mp2              | stm32mp257 | cortex-a35*2  | both | stm32mp2 stm32mp257
nxp/imx6q                | imx6q   | cortex-a9*4      | armv7a | imx6 imx6q
nxp/imx6ull              | imx6ull | cortex-a7        | armv7a | imx6ull
nxp/imx7d                | imx7d   | cortex-a7*2      | armv7a | imx7 imx7d
nxp/imx8mq               | imx8mq  | cortex-a53*4     | both | imx8m imx8mq google/coral-dev-board
nxp/imx8mm               | imx8mm  | cortex-a53*4     | both | imx8mm
nxp/imx8mp               | imx8mp  | cortex-a53*4     | both | imx8mp imx8mplus
nxp/imx8qm               | imx8qm  | cortex-a72*2 cortex-a53*4 | both | imx8qm
nxp/imx93                | imx93   | cortex-a55*2     | both | imx93
banana-pi/m1             | allwinner-a20 | cortex-a7*2 | armv7a | bananapi bananapi-m1
banana-pi/m2-zero        | allwinner-h3 | cortex-a7*4 | armv7a | bananapi-m2-zero
orange-pi/one            | allwinner-h3 | cortex-a7*4 | armv7a | orangepi orangepi-one \
orange-pi/zero orange-pi/pc nanopi/neo
orange-pi/zero-2         | allwinner-h616 | cortex-a53*4 | both | orangepi-zero2 orange-pi/zero-3
odroid/c1                | amlogic-s805 | cortex-a5*4 | armv7a | odroid-c1
odroid/u3                | exynos4412 | cortex-a9*4   | armv7a | odroid-u3
odroid/xu4               | exynos5422 | cortex-a15*4 cortex-a7*4 | armv7a | odroid-xu4
odroid/c2                | amlogic-s905 | cortex-a53*4 | both | odroid-c2
odroid/c4                | amlogic-s905x3 | cortex-a55*4 | both | odroid-c4
odroid/n2                | amlogic-s922x | cortex-a73*4 cortex-a53*2 | both | odroid-n2
khadas/vim3              | amlogic-a311d | cortex-a73*4 cortex-a53*2 | both | vim3
xilinx/pynq              | zynq7020 | cortex-a9*2     | armv7a | pynq pynq-z1 pynq-z2 zynq \
xilinx/zynq-7000 zedboard
xilinx/ultra96           | zynqmp-zu3eg | cortex-a53*4 | both | ultra96 zynqmp
xilinx/zcu104            | zynqmp-zu7ev | cortex-a53*4 | both | zcu104
xilinx/kv260             | zynqmp-k26 | cortex-a53*4  | both | kv260 kr260
qualcomm/dragonboard-410c | snapdragon410 | cortex-a53*4 | both | dragonboard-410c
qualcomm/rb5             | snapdragon865 | cortex-a77*4 cortex-a55*4 | aarch64 | rb5
google/pixel2            | snapdragon835 | cortex-a73*4 cortex-a53*4 | aarch64 | pixel2
huawei/mate10            | kirin970 | cortex-a73*4 cortex-a53*4 | aarch64 | mate10 mate10pro p20 \
p20pro
hikey/960                | kirin960 | cortex-a73*4 cortex-a53*4 | aarch64 | hikey960
cavium/thunderx          | thunderxt88 | thunderxt88*48 | aarch64 | thunderx
apple/m1                 | apple-m1 | apple-m1*8      | aarch64 |
apple/m2                 | apple-m2 | apple-m2*8      | aarch64 |
aws/graviton2            | graviton2 | neoverse-n1*64 | aarch64 | graviton2
aws/graviton3            | graviton3 | neoverse-v1*64 | aarch64 | graviton3
aws/graviton4            | graviton4 | neoverse-v2*96 | aarch64 | graviton4
ampere/altra             | altra   | neoverse-n1*80   | aarch64 | altra
"""


def _clusters(text: str) -> tuple[Cluster, ...]:
    pairs = (word.partition("*") for word in text.split())
    return tuple(Cluster(cpu, int(count or 1)) for cpu, _, count in pairs)


@cache
def _boards() -> tuple[dict[str, Board], dict[str, str]]:
    """Boards by full name, and full names by alias."""
    boards: dict[str, Board] = {}
    aliases: dict[str, str] = {}
    for line in _TABLE.strip().splitlines():
        name, model, cores, which, others = (part.strip() for part in line.split("|"))
        forms: tuple[Form, ...]
        match which:
            case "both":
                forms = ("aarch64", "armv7a")
            case "armv7a" | "aarch64":
                forms = (which,)
            case _:
                raise AssertionError(line)
        for form in forms:
            full = f"{name}-{form}"
            boards[full] = Board(full, model, _clusters(cores), form)
        for alias in [name, *others.split()]:
            short, _, chosen = alias.partition(":")
            aliases[short] = f"{name}-{chosen or forms[0]}"
            if "/" in short and short != name:  # also "raspberry-pi/400-aarch64"
                aliases.update({f"{short}-{form}": f"{name}-{form}" for form in forms})
    return boards, aliases


def board_names() -> tuple[str, ...]:
    """Every name that `board` takes."""
    boards, aliases = _boards()
    return tuple(sorted({*boards, *aliases}))


def board(name: str) -> Board:
    """The board of a name or alias. Raises TargetError with the nearest names."""
    boards, aliases = _boards()
    key = name.strip().lower()
    found = boards.get(aliases.get(key, key))
    if found is None:
        raise TargetError(f"unknown board '{name}'", suggest(key, board_names()))
    return found
