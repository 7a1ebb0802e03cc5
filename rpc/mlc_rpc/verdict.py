"""Whether a timing can be trusted: rules over samples and their conditions.

    emulated    an emulator's seconds
    throttled   the clock was held down, or did not stay where it was
    migrated    the work did not stay on cores of one kind
    noisy       the samples do not agree with each other, or other programs had a share of the core
    ok          none of these

The verdict is the first that holds, in this order: a throttled clock also causes noise, and naming
the cause helps more. `findings` says why, and what mends it. `board doctor` looks for the same
causes before anything is timed (facts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.cores import ranges

if TYPE_CHECKING:
    from mlc_rpc.timing import Conditions, Timing

Verdict = Literal["ok", "noisy", "throttled", "migrated", "emulated"]
Floats = NDArray[np.float64]

NOISY = 0.05  # of the median: schedules that differ by this much should be told apart
OUTLYING = 5.0  # standard deviations, estimated by the MAD: by chance 1 sample in 2 million
OUTLYING_LEAST = 0.02  # of the median, for samples that agree to the nanosecond
OUTLIERS = 0.1  # of the samples: a median bears more, but so many have a recurring cause
STEADY = 0.95  # of the clock: a board's clock steps are larger, errors of reading smaller
LOW = 0.7  # of the clock's limit: a PC's turbo with all cores at work stays above, a governor not
HOT = 70.0  # degrees Celsius: most boards throttle from 80 on
BUSY = 0.3  # of a core, by the kernel's load average
SHARE = 0.9  # of its core's time that a working thread should get
READABLE_US = 1000  # samples this long are needed to measure a share of a core

THROTTLED_NOW = 0xF  # bits of the Raspberry Pi's get_throttled: weak supply, capped, throttled, hot
WEAK_NOW = 0x1

GOVERNOR = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
COOL = "a heat sink or a fan; cooldown_interval_ms"
SUPPLY = "a stronger power supply"
END_OTHERS = "end other programs (top), or wait"
MORE = "a larger min_repeat_ms or repeat"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a board that matters to timing, and what mends it ("" if it is in order)."""

    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.what}; try: {self.mend}" if self.mend else self.what


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    findings: tuple[Finding, ...] = ()  # those that decided the verdict come first


def judge(timing: Timing) -> Judgement:
    """The verdict over a timing, and all findings against it."""
    if timing.emulated:
        seconds = Finding("an emulator's seconds are not those of a board", "count instructions")
        return Judgement("emulated", (seconds,))
    verdict: Verdict = "ok"
    findings: list[Finding] = []
    for word, rule in RULES:
        found = rule(timing)
        if found and verdict == "ok":
            verdict = word
        findings += found
    return Judgement(verdict, tuple(findings))


# ---- What the samples say by themselves ----


def outliers(samples: Sequence[float]) -> tuple[int, ...]:
    """Indices of the samples too far from the median to be chance."""
    values = np.asarray(samples, np.float64)
    median = np.median(values)
    away = np.abs(values - median)
    bound = max(OUTLYING * 1.4826 * float(np.median(away)), OUTLYING_LEAST * float(median))
    return tuple(int(i) for i in np.flatnonzero(away > bound))


def drift(samples: Sequence[float]) -> float:
    """How much slower the last third was than the first, as a share; 0 for fewer than six
    samples."""
    third = len(samples) // 3
    if third < 2:
        return 0.0
    first, last = float(np.median(samples[:third])), float(np.median(samples[-third:]))
    return last / first - 1 if first else 0.0


# ---- The rules: each returns its findings against the timing ----


def throttled(timing: Timing) -> list[Finding]:
    """The clock, as the kernel says or by the CPU's cycle counter."""
    now = timing.conditions
    if now is None:
        return []
    degrees = hottest(now)
    mend = COOL if degrees >= HOT else GOVERNOR
    heat = f" at {degrees:.0f} °C" if degrees >= HOT else ""
    found: list[Finding] = []
    flags = [int(flag) for flag in _known(now.after["throttled"])]
    bad = [flag for flag in flags if flag & THROTTLED_NOW]
    if bad:
        weak = bad[0] & WEAK_NOW
        what = "its supply was weak" if weak else "it was throttled"
        found.append(Finding(f"{what} (get_throttled {bad[0]:#x})", SUPPLY if weak else COOL))
    clock, limit = clock_khz(timing), _known(now.after["clock_limit_khz"])
    most = _known(now.after["clock_most_khz"])
    if clock.size:
        low, high = (float(np.percentile(clock, share)) for share in (10, 90))
        if low < STEADY * high:
            found.append(Finding(f"the clock was {_ghz(low)} to {_ghz(high)} GHz{heat}", mend))
        elif limit.size and np.median(clock) < LOW * limit.max():
            held = f"{_ghz(float(np.median(clock)))} of {_ghz(limit.max())} GHz"
            found.append(Finding(f"the clock stayed at {held}{heat}", mend))
    if limit.size and limit.min() < STEADY * limit.max():
        what = f"the clock's limit was {_ghz(limit.min())} to {_ghz(limit.max())} GHz{heat}"
        found.append(Finding(what, mend))
    elif limit.size and most.size and limit.max() < STEADY * most.max() and degrees >= HOT:
        what = f"the clock was held at {_ghz(limit.max())} of {_ghz(most.max())} GHz{heat}"
        found.append(Finding(what, mend))
    return found


def migrated(timing: Timing) -> list[Finding]:
    """The cores. Moving between cores of one kind is allowed."""
    now = timing.conditions
    if now is None or not now.cores:
        return []
    found: list[Finding] = []
    visited = {int(c) for rows in (now.before, now.after) for c in _known(rows["core"])}
    strange = sorted(visited - set(now.cores))
    if strange:
        what = f"it ran on core {ranges(strange)}, and was to stay on {ranges(now.cores)}"
        found.append(Finding(what, "leave cores to it: cpusets, taskset, offline cores"))
    slow = set(now.slow_cores) & set(now.cores)
    if 0 < len(slow) < len(now.cores):
        what = f"{timing.threads} threads shared fast cores and slow ones"
        found.append(Finding(what, f"at most {now.fast_cores} threads, or cores of one kind"))
    return found


def noisy(timing: Timing) -> list[Finding]:
    """The spread of the samples, and what may have caused it."""
    samples, found = timing.samples, list[Finding]()
    causes, mend = _disturbances(timing)
    because = f" ({', '.join(causes)})" if causes else ""
    spread = timing.mad / timing.median if timing.median else 0.0
    far, slower = timing.outliers, timing.drift
    if spread > NOISY:
        found.append(Finding(f"samples are {spread:.1%} from their median{because}", mend))
    if len(far) > max(1, OUTLIERS * len(samples)):
        what = f"{len(far)} of {len(samples)} samples are far from the others{because}"
        found.append(Finding(what, mend))
    if abs(slower) > NOISY:
        way = "slower" if slower > 0 else "faster"
        what = f"the last samples are {abs(slower):.1%} {way} than the first{because}"
        found.append(Finding(what, "warm up longer (min_repeat_ms); " + COOL))
    share = core_share(timing)
    if share is not None and share < SHARE:
        what = f"it had {share:.0%} of its core{because}"
        found.append(Finding(what, END_OTHERS))
    return found


RULES: tuple[tuple[Verdict, Callable[[Timing], list[Finding]]], ...] = (
    ("throttled", throttled),
    ("migrated", migrated),
    ("noisy", noisy),
)


def _disturbances(timing: Timing) -> tuple[list[str], str]:
    """Possible causes of a spread, in words, and what mends them."""
    now = timing.conditions
    if now is None:
        return [], MORE
    causes: list[str] = []
    mend = MORE
    faults, switches = (
        float(now.during(fact).sum()) for fact in ("major_faults", "involuntary_switches")
    )
    load = _known(now.before["load_percent"][:1])
    if faults:
        causes.append(f"memory was fetched from the disk {faults:.0f} times")
        mend = "a board with more memory, or fewer programs on it"
    if switches > len(timing.samples):  # the kernel's own threads need a core now and then
        causes.append(f"interrupted {switches:.0f} times")
        mend = END_OTHERS
    if load.size and load[0] > 100 * (BUSY + timing.threads):
        causes.append(f"load {load[0] / 100:g}")
        mend = END_OTHERS
    return causes, mend


# ---- Derived from the conditions ----


def clock_khz(timing: Timing) -> Floats:
    """The clock after each row: as the kernel says, else cycles by time on the core."""
    now = timing.conditions
    if now is None:
        return np.empty(0)
    clocks = _known(now.after["clock_khz"])
    if clocks.size:
        return clocks
    cycles, busy = now.during("cycles"), now.during("cpu_us")
    if cycles.size == 0 or cycles.size != busy.size:
        return np.empty(0)
    long = busy >= READABLE_US
    return cycles[long] / busy[long] * 1e3


def core_share(timing: Timing) -> float | None:
    """The share of its core that a single thread had during samples; None if unknown, as with
    several threads, which wait for each other."""
    now = timing.conditions
    if now is None or now.each != 1 or timing.threads != 1:
        return None
    busy = now.during("cpu_us")
    took = np.asarray(timing.samples) * np.asarray(timing.number) * 1e6
    if busy.size != took.size or not (took >= READABLE_US).any():
        return None
    long = took >= READABLE_US
    return float(np.median(busy[long] / took[long]))


def hottest(conditions: Conditions) -> float:
    """Degrees Celsius of the hottest zone at any time; below any threshold if none is known."""
    rows = [
        _known(values)
        for side in (conditions.before, conditions.after)
        for fact, values in side.items()
        if fact.startswith("zone")
    ]
    return max((float(values.max()) for values in rows if values.size), default=-1e6) / 1e3


def _known(values: Sequence[int | None]) -> Floats:
    return np.asarray([value for value in values if value is not None], np.float64)


def _ghz(khz: float) -> str:
    return f"{khz / 1e6:.2f}"
