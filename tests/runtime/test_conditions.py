"""What the board's program tells of the conditions that samples are taken under. Its /sys and /proc
are a folder here, so that the clock falls and the board gets hot when a test wants it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.board.runtime_files import runtime_file
from mlc_deploy.driver.resources import energy_of
from mlc_rpc import RemoteFunction, RemoteTensor, Timing, connect, wire
from tests.runtime.driver import RUNTIME

CPUS = sorted(os.sched_getaffinity(0))
PI = "sys/devices/platform/soc/soc:firmware/get_throttled"
ZONE = "sys/class/thermal/thermal_zone{}/temp"


def clock_file(core: int, name: str) -> str:
    return f"sys/devices/system/cpu/cpu{core}/cpufreq/{name}"


@pytest.fixture(scope="module")
def system() -> Iterator[Path]:
    """Which nobody may read, as root's worker is."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def program(system: Path) -> Path:
    """The runtime of this machine, for which `system` is the root of /sys and /proc."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler here")
    path = system / "mlc-runtime"
    sources = sorted(map(str, (RUNTIME / "src").glob("*.c")))
    command = [compiler, "-std=c11", "-O1", f'-DSYSTEM_ROOT="{system}"', "-o", str(path)]
    subprocess.run([*command, *sources, "-lm", "-lpthread"], check=True)
    return path


@pytest.fixture
def calm(system: Path) -> Path:
    """A board at 1.5 GHz and 45 degrees."""
    for core in CPUS:
        for name in ("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq"):
            put(system / clock_file(core, name), "1500000\n")
    put(system / ZONE.format(0), "45000\n")
    put(system / ZONE.format(1), "-5000\n")
    put(system / "proc/loadavg", "0.52 0.58 0.59 1/467 1234\n")
    put(system / PI, "0\n")
    return system


def put(path: Path, text: str) -> None:
    """In place, since the board keeps its files open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.write(text)


@contextmanager
def adding(
    program: Path, board: str = "local://", target: str = "host"
) -> Iterator[tuple[RemoteFunction, tuple[RemoteTensor, ...]]]:
    """A kernel on the board, and what it takes."""
    x = te.placeholder((1, 1024), name="x")
    y = te.compute((1, 1024), lambda i, j: x[i, j] + x[i, j], name="y")
    library = mlc.build([x, y], target=target, name="double")
    with connect(board, lambda machine: program) as session:
        args = session.tensor(np.ones((1, 1024), np.float32)), session.empty((1, 1024))
        yield session.load(library)["double"], args


def timed_while(program: Path, change: Callable[[int], None]) -> Timing:
    """Twenty samples, while change(0), change(1), ... are called every few milliseconds."""
    over = threading.Event()

    def keep_changing() -> None:
        for turn in itertools.count():
            change(turn)
            if over.wait(0.02):
                return

    with adding(program) as (double, args):
        changing = threading.Thread(target=keep_changing)
        changing.start()
        try:
            evaluator = double.time_evaluator(
                number=1, repeat=20, min_repeat_ms=2, cooldown_interval_ms=15
            )
            return evaluator(*args)
        finally:
            over.set()
            changing.join()


def test_what_a_calm_board_tells(program: Path, calm: Path) -> None:
    timing = timed_while(program, lambda turn: None)
    assert timing.conditions is not None
    for side in (timing.conditions.before, timing.conditions.after):
        for clock in ("clock_khz", "clock_limit_khz", "clock_most_khz"):
            assert side[clock] == (1500000,) * 20
        assert side["zone0_mc"] == (45000,) * 20 and side["load_percent"] == (52,) * 20
        assert side["zone1_mc"] == side["zone2_mc"] == (None,) * 20  # below 0, and not there
        assert side["throttled"] == (0,) * 20
        assert set(side["core"]) <= set(CPUS)
    assert timing.conditions.cores == tuple(CPUS)
    assert timing.verdict in ("ok", "noisy")  # others may use this machine


def test_a_clock_that_falls_is_throttling(program: Path, calm: Path) -> None:
    def fall(turn: int) -> None:
        clock, degrees = ("1500000", "61000") if turn % 2 else ("1200000", "82000")
        for core in CPUS:
            put(calm / clock_file(core, "scaling_cur_freq"), f"{clock}\n")
        put(calm / ZONE.format(0), f"{degrees}\n")

    timing = timed_while(program, fall)
    assert timing.verdict == "throttled"
    reason = "the clock was 1.20 to 1.50 GHz at 82 °C; try: a heat sink or a fan"
    assert str(timing.judgement.findings[0]).startswith(reason)


def test_a_weak_supply_is_throttling(program: Path, calm: Path) -> None:
    put(calm / PI, "50005\n")
    timing = timed_while(program, lambda turn: None)
    assert timing.verdict == "throttled"
    assert timing.judgement.findings[0].what == "its supply was weak (get_throttled 0x50005)"
    put(calm / PI, "0\n\n\n\n\n\n")


def test_conditions_are_of_the_sample_alone(program: Path, calm: Path) -> None:
    """Time on the core is counted while a sample is taken, not while it is rested or prepared."""
    for _ in range(3):  # another program may have the core for some samples, but not for all
        with adding(program) as (double, args):
            timing = double.time_evaluator(
                number=1, repeat=8, min_repeat_ms=5, cooldown_interval_ms=10,
                cache_flush_bytes=1 << 24,
            )(*args)  # fmt: skip
        assert timing.conditions is not None
        took = np.multiply(timing.samples, timing.number) * 1e6
        busy = timing.conditions.during("cpu_us")
        assert (busy <= took * 1.02 + 200).all()
        if (busy >= 0.9 * took - 200).any():
            break
    else:
        assert timing.verdict != "ok"
    assert timing.conditions is not None
    begun = np.asarray(timing.conditions.before["cpu_us"], np.float64)
    assert (np.diff(begun) > busy[:-1]).all()  # flushing, and trials that were too short


def test_many_samples_share_rows(program: Path, calm: Path) -> None:
    with adding(program) as (double, args):
        timing = double.time_evaluator(number=1, repeat=1201)(*args)
    assert len(timing.samples) == 1201 and timing.conditions is not None
    assert timing.conditions.each == 3 and len(timing.conditions.after["core"]) == 401
    assert timing.per_run("major_faults") == 0


def test_each_call_is_timed_in_each_sample(program: Path, calm: Path) -> None:
    with adding(program) as (double, args):
        timing = double.time_evaluator(number=1, repeat=5, min_repeat_ms=5, layers=True)(*args)
        assert [len(row) for row in timing.layers] == [1] * 5
        for (call,), whole in zip(timing.layers, timing.samples, strict=True):
            assert 0 < call <= whole
        assert double.time_evaluator(number=1)(*args).layers == ()


@pytest.mark.skipif(not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user")
@pytest.mark.parametrize(
    "board, machine, target",
    [("qemu://cortex-a7", "arm", "armv7a"), ("qemu://cortex-a53", "aarch64", "aarch64")],
)
def test_emulated_boards_are_timed_and_not_believed(board: str, machine: str, target: str) -> None:
    with adding(runtime_file(machine), board, target) as (double, args):
        timing = double.time_evaluator(
            number=1, repeat=6, min_repeat_ms=1, cache_flush_bytes=1 << 20, layers=True
        )(*args)
    assert (timing.verdict, len(timing.samples), len(timing.layers)) == ("emulated", 6, 6)
    assert timing.conditions is not None and timing.per_run("cycles") is None
    assert (timing.conditions.during("cpu_us") > 0).all()
    assert timing.record()["conditions"] is None  # they would be of the machine outside


def test_memory_and_energy(program: Path, calm: Path) -> None:
    """The worker's pages, and what the first sensor says that there is; else the CPU's counter."""
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    put(calm / "proc/self/statm", "999 250 77 1 0 88 0\n")
    put(calm / "sys/class/powercap/intel-rapl:0/energy_uj", "5\n")
    with adding(program) as (double, args):
        timing = double.time_evaluator(number=1, repeat=3)(*args)
    now = timing.conditions
    assert now is not None and now.before["memory_kb"] == (250 * page,) * 3
    assert all(most is not None and most > 100 for most in now.after["memory_most_kb"])
    assert now.after["energy_uj"] == (5, 5, 5) and now.after["power_uw"] == (None,) * 3
    assert energy_of(timing) is None  # a counter that stands still is none
    put(calm / "sys/class/hwmon/hwmon3/power1_input", "2500000\n")
    counter = calm / "sys/class/hwmon/hwmon3/energy1_input"
    put(counter, "1000000\n")
    timing = timed_while(program, lambda turn: put(counter, f"{(turn + 2) * 1000000}\n"))
    energy = energy_of(timing)
    assert energy is not None and energy["watts"] == 2.5
    assert energy.get("joules_per_run", 0.0) >= 0.0
    now = timing.conditions
    assert now is not None and (now.during("energy_uj") >= 0).all()
    first, last = now.before["energy_uj"][0], now.after["energy_uj"][-1]
    assert first is not None and last is not None and last > first


def test_the_facts_are_those_of_the_wire() -> None:
    """C's names, in mlc_rpc/wire.py's words."""
    source = (RUNTIME / "src" / "conditions.c").read_text()
    table = re.search(r"NAMES\[FACTS\] = \{(.*?)\};", source, re.DOTALL)
    assert table
    names = re.findall(r'"(\w+)"', table[1])
    described = Path(wire.__file__).read_text()
    assert len(names) == len(set(names)) == 25
    for name in names:
        assert name in described or re.fullmatch(r"zone[1-6]_mc", name), name
    timer = (RUNTIME / "src" / "timer.h").read_text()
    assert "MAX_LAYER_TIMES = 1 << 14" in timer and wire.MAX_LAYER_TIMES == 1 << 14
    instruments = (RUNTIME / "src" / "instruments.h").read_text()
    assert "MAX_SPANS = 1 << 13" in instruments and wire.MAX_SPANS == 1 << 13
