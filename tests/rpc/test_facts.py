"""What a board's kernel tells, and what of it speaks against timing there."""

from __future__ import annotations

import sys

import pytest

from mlc_rpc.facts import Cache, findings, parse_facts, read_facts

CPU = "/sys/devices/system/cpu/cpu"
CALM = {
    "/proc/loadavg": "0.02 0.10 0.20 1/100 999",
    f"{CPU}0/cpufreq/scaling_governor": "performance",
    f"{CPU}0/cpufreq/scaling_max_freq": "1500000",
    f"{CPU}0/cpufreq/cpuinfo_max_freq": "1500000",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "/sys/class/thermal/thermal_zone0/temp": "48312",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "0",
}


def doubts(changed: dict[str, str]) -> list[str]:
    return [found.what for found in findings(parse_facts(CALM | changed)) if found.mend]


def test_a_calm_board_is_trusted() -> None:
    assert doubts({}) == []
    assert len(findings(parse_facts(CALM))) == 4


@pytest.mark.parametrize(
    "path, text, doubt",
    [
        ("/proc/loadavg", "1.50 1 1 1/1 1", "other programs run: load 1.5"),
        (
            f"{CPU}0/cpufreq/scaling_governor",
            "ondemand",
            "the clock follows the load (governor ondemand)",
        ),
        (f"{CPU}0/cpufreq/scaling_max_freq", "600000", "core 0 is held at 0.60 GHz of 1.50"),
        (
            "/sys/class/thermal/thermal_zone0/temp",
            "81000",
            "it is hot: 81 °C in thermal zone 0 cpu-thermal",
        ),
        (
            "/sys/devices/platform/soc/soc:firmware/get_throttled",
            "50005",
            "its supply is weak (get_throttled 0x50005)",
        ),
        ("/sys/devices/system/cpu/cpufreq/boost", "1", "the clock is raised for moments (boost)"),
    ],
)
def test_what_speaks_against_timing(path: str, text: str, doubt: str) -> None:
    assert doubts({path: text}) == [doubt]


def test_what_the_kernel_does_not_tell_is_not_made_up() -> None:
    facts = parse_facts({"/proc/loadavg": "?", f"{CPU}3/cpu_capacity": "much"})
    assert facts.load is None and facts.temperatures is None
    assert [core.number for core in facts.cores] == [3] and facts.cores[0].capacity is None


def test_a_cache_that_cores_share_is_told_once() -> None:
    files: dict[str, str] = {}
    for core in (0, 1):
        folder = f"{CPU}{core}/cache/index2"
        files |= {f"{folder}/level": "2", f"{folder}/type": "Unified", f"{folder}/size": "1024K"}
        files[f"{folder}/shared_cpu_list"] = "0-1"
    assert parse_facts(files).caches == (Cache(2, "Unified", "1024K", "0-1"),)


@pytest.mark.skipif(sys.platform != "linux", reason="the board is this machine")
def test_this_machine_is_read() -> None:
    facts = read_facts("local://", 10)
    assert facts and facts.load is not None and facts.available
    assert read_facts("qemu://cortex-a72", 10) is None
