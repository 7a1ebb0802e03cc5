"""What a board's Linux kernel says: cores, caches, frequencies, temperatures; read by a shell.

Only people ask for these facts, so the runtime does not serve them. Boards without a shell (tcp://,
qemu://) have only `describe`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from mlc_rpc.ssh_scripts import SHELL, Script, script
from mlc_rpc.transport import LabgridUrl, LocalUrl, SshUrl, parse_url
from mlc_rpc.verdict import BUSY, GOVERNOR, HOT, Finding

_CPU = "/sys/devices/system/cpu/cpu[0-9]*"
_FILES = (
    "/proc/device-tree/model",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/sys/kernel/perf_event_paranoid",
    "/sys/devices/system/cpu/cpufreq/boost",
    "/sys/devices/platform/soc/soc:firmware/get_throttled",
    f"{_CPU}/cpu_capacity",
    f"{_CPU}/cpufreq/scaling_governor",
    f"{_CPU}/cpufreq/scaling_cur_freq",
    f"{_CPU}/cpufreq/scaling_max_freq",
    f"{_CPU}/cpufreq/cpuinfo_max_freq",
    f"{_CPU}/cache/index*/level",
    f"{_CPU}/cache/index*/type",
    f"{_CPU}/cache/index*/size",
    f"{_CPU}/cache/index*/shared_cpu_list",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/class/thermal/thermal_zone*/temp",
)
_READ = (
    f"for f in {' '.join(_FILES)}; do\n"
    '    [ -r "$f" ] && echo "@mlc@file $f" && cat "$f" 2> /dev/null && echo\n'
    "done\ntrue\n"
)

Files = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Core:
    """Frequencies in kHz; None and "" where the kernel does not say."""

    number: int
    capacity: int | None = None  # the fastest core has 1024
    governor: str = ""
    now: int | None = None
    allowed: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    level: int
    kind: str  # "Data", "Instruction", "Unified"
    size: str  # as the kernel writes it: "32K"
    cores: str  # that share it: "0-3"


@dataclass(frozen=True, slots=True)
class Facts:
    """Temperatures in degrees Celsius, memory in bytes; None where the kernel does not say.

    `throttled` is the Raspberry Pi's get_throttled; 0 means that all is well.
    """

    model: str = ""
    cores: tuple[Core, ...] = ()
    caches: tuple[Cache, ...] = ()
    temperatures: Mapping[str, float] | None = None
    load: float | None = None
    available: int | None = None
    throttled: int | None = None
    boost: bool | None = None
    paranoid: int | None = None


def read_facts(url: str, timeout: float) -> Facts | None:
    """None for a board without a shell. Raises Unreachable."""
    match parse_url(url):
        case LocalUrl() if sys.platform == "linux":
            read = script(_READ)
            done = subprocess.run([SHELL], input=read.sent, capture_output=True, timeout=timeout)
            return parse_facts(_files(read, done.stdout.decode(errors="replace")))
        case LabgridUrl() as board:
            from mlc_rpc.labgrid import lent

            with lent(board) as place:
                return _asked(place.address, timeout)
        case SshUrl() as board:
            return _asked(board, timeout)
        case _:
            return None


def _asked(board: SshUrl, timeout: float) -> Facts:
    from mlc_rpc.ssh import open_shell
    from mlc_rpc.ssh_config import resolve

    shell, read = open_shell(resolve(board), timeout), script(_READ)
    try:
        return parse_facts(_files(read, shell.run(read, timeout).out))
    finally:
        shell.close()


def _files(read: Script, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(f"{read.mark}file ")[1:]:
        path, _, text = part.partition("\n")
        found[path] = text.strip("\0\n ")
    return found


def parse_facts(files: Files) -> Facts:
    """`files`: content by path. What is missing or not a number is unknown."""

    def number(path: str) -> int | None:
        text = files.get(path, "")
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None

    cpus = "/sys/devices/system/cpu/cpu"
    numbers = {int(m[1]) for path in files if (m := re.match(cpus + r"([0-9]{1,4})/", path))}
    cores = tuple(
        Core(
            n,
            number(f"{cpus}{n}/cpu_capacity"),
            files.get(f"{cpus}{n}/cpufreq/scaling_governor", ""),
            number(f"{cpus}{n}/cpufreq/scaling_cur_freq"),
            number(f"{cpus}{n}/cpufreq/scaling_max_freq"),
            number(f"{cpus}{n}/cpufreq/cpuinfo_max_freq"),
        )
        for n in sorted(numbers)
    )
    caches = dict.fromkeys(  # every core that shares a cache lists it
        Cache(
            number(f"{folder}/level") or 0,
            files.get(f"{folder}/type", ""),
            files.get(f"{folder}/size", ""),
            files.get(f"{folder}/shared_cpu_list", ""),
        )
        for folder in sorted(path[: -len("/level")] for path in files if path.endswith("/level"))
    )
    zones = [path[: -len("/temp")] for path in files if path.endswith("/temp")]
    temperatures = {
        f"{zone.rpartition('thermal_zone')[2]} {files.get(f'{zone}/type', '')}".strip(): t / 1000
        for zone in zones
        if (t := number(f"{zone}/temp")) is not None
    }
    load = re.match(r"[0-9]{1,9}\.[0-9]{1,9}", files.get("/proc/loadavg", ""))
    told = files.get("/proc/meminfo", "")
    memory = re.search(r"^MemAvailable: +([0-9]{1,18}) kB", told, re.MULTILINE)
    throttled = files.get("/sys/devices/platform/soc/soc:firmware/get_throttled", "")
    boost = number("/sys/devices/system/cpu/cpufreq/boost")
    return Facts(
        model=files.get("/proc/device-tree/model", ""),
        cores=cores,
        caches=tuple(caches),
        temperatures=temperatures or None,
        load=float(load[0]) if load else None,
        available=int(memory[1]) * 1024 if memory else None,
        throttled=int(throttled, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", throttled) else None,
        boost=None if boost is None else bool(boost),
        paranoid=number("/proc/sys/kernel/perf_event_paranoid"),
    )


def findings(facts: Facts) -> list[Finding]:
    """What makes times on the board doubtful, and what is in order."""
    found: list[Finding] = []

    def look(doubt: bool, bad: str, mend: str, well: str) -> None:
        found.append(Finding(bad, mend) if doubt else Finding(well))

    governors = sorted({core.governor for core in facts.cores if core.governor})
    look(
        any(governor != "performance" for governor in governors),
        f"the clock follows the load (governor {', '.join(governors)})",
        GOVERNOR,
        f"governor {governors[0]}" if governors else "the kernel does not change the clock",
    )
    capped = [c for c in facts.cores if c.allowed and c.most and c.allowed < c.most]
    if capped:
        core = capped[0]
        mend = f"echo {core.most} | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"
        what = f"core {core.number} is held at {(core.allowed or 0) / 1e6:.2f} GHz"
        found.append(Finding(f"{what} of {(core.most or 0) / 1e6:.2f}", mend))
    if facts.boost is not None:
        look(
            facts.boost,
            "the clock is raised for moments (boost)",
            "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
            "no boost",
        )
    if facts.temperatures:
        zone, most = max(facts.temperatures.items(), key=lambda item: item[1])
        hot = f"{most:.0f} °C in thermal zone {zone}"
        look(most >= HOT, f"it is hot: {hot}", "a heat sink or a fan; let it cool down", hot)
    if facts.load is not None:
        look(
            facts.load > BUSY,
            f"other programs run: load {facts.load:g}",
            "end them (top), or wait",
            f"load {facts.load:g}",
        )
    if facts.throttled is not None:
        what = "its supply is weak" if facts.throttled & 0x10001 else "it was throttled"
        look(
            facts.throttled != 0,
            f"{what} (get_throttled {facts.throttled:#x})",
            "a stronger power supply and cooling; then restart it",
            "neither weak supply nor throttling since it was started",
        )
    return found
