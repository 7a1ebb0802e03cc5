"""The table of boards: its names are unique, its CPUs exist, and code for a board runs on it."""

from __future__ import annotations

import pytest

from mlc_targets import Board, Cluster, Target, TargetError, board, board_names
from mlc_targets.boards import _TABLE
from mlc_targets.cpus import CPUS, cpu_features
from mlc_targets.features import REQUIRED

# Every model and tag that TVM's arm_cpu targets know, and the architecture that it really has.
TVM = {
    **dict.fromkeys(("pixel2", "mate10", "mate10pro", "p20", "p20pro"), "aarch64"),
    **dict.fromkeys(("rasp3b", "rasp4b", "pynq", "beagleai", "stm32mp1"), "arm"),
    **dict.fromkeys(("rasp4b64", "rk3399", "ultra96", "thunderx"), "aarch64"),
    "raspberry-pi/4b-aarch64": "aarch64",
    "nvidia/jetson-agx-xavier": "aarch64",
    "nvidia/jetson-nano": "aarch64",
    "nvidia/jetson-tx2": "aarch64",
    "nvidia/jetson-orin-nano": "aarch64",
    "nvidia/jetson-agx-orin-32gb": "aarch64",
    "nvidia/jetson-agx-orin-64gb": "aarch64",
}


@pytest.mark.parametrize("name", TVM)
def test_boards_of_tvm(name: str) -> None:
    target = Target(name)
    assert target.arch == TVM[name]
    assert (target.keys, target.device) == (("arm_cpu", "cpu"), "arm_cpu")
    assert target.mcpu != "generic" and target.has("neon") and target.num_cores


def test_a_board() -> None:
    assert board("rk3399") == Board(
        name="rockchip/rk3399-aarch64",
        model="rk3399",
        clusters=(Cluster("cortex-a72", 2), Cluster("cortex-a53", 4)),
        form="aarch64",
    )
    assert (board("RK3399").mcpu, board("rk3399").num_cores) == ("cortex-a72", 6)
    target = Target("raspberry-pi/4b-armv7a")
    assert (target.tag, target.model) == ("raspberry-pi/4b-armv7a", "bcm2711")
    assert target.mtriple == "armv7a-unknown-linux-gnueabihf"
    assert target == Target("rasp4b")


@pytest.mark.parametrize("version", ["2b", "3b", "4b", "5", "zero-2w", "cm4", "400"])
def test_raspberry_pis(version: str) -> None:
    target = Target(f"raspberry-pi/{version}")
    assert target.arch == ("arm" if version == "2b" else "aarch64")
    assert target.has("neon")


@pytest.mark.parametrize("name", board_names())
def test_every_core_of_a_board_runs_its_code(name: str) -> None:
    target = Target(name)
    assert target.num_cores == board(name).num_cores
    for cluster in board(name).clusters:
        # LLVM knows less of 64-bit CPUs in 32-bit state (no fullfp16 on the Cortex-A55, say).
        if cluster.cpu in CPUS["aarch64"] and target.arch == "arm":
            target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": target.mcpu})
        assert set(target.required_features) <= cpu_features(target.arch, cluster.cpu)


def test_no_name_stands_for_two_boards() -> None:
    names: list[str] = []
    for line in _TABLE.strip().splitlines():
        first, _, _, _, aliases = (part.strip() for part in line.split("|"))
        names += [first, *(alias.partition(":")[0] for alias in aliases.split())]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_requirements_can_be_reported() -> None:
    assert all(set(Target(name).required_features) <= REQUIRED[Target(name).arch] for name in TVM)


def test_unknown_board() -> None:
    with pytest.raises(TargetError) as error:
        board("rk3398")
    assert str(error.value) == (
        "unknown board 'rk3398'\n  try: rk3399 or rk3328 or rk3588 or rk3568"
    )
