"""The verdict over a timing, on synthetic samples and conditions."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_rpc.cores import core_numbers, ranges
from mlc_rpc.timing import Conditions, Timing, parse_conditions
from mlc_rpc.verdict import drift, judge, outliers

ROWS = 20
CALM = tuple(0.010 + 1e-6 * (i * 7 % 5) for i in range(ROWS))  # 10 ms, microseconds apart
GHZ = 1_000_000


def conditions(
    cores: tuple[int, ...] = (0, 1, 2, 3), slow: tuple[int, ...] = (), **facts: Any
) -> Conditions:
    """Of a calm board with four fast cores, but for `facts`: a value, or one per row, after each
    sample; of those named `before_...`, before each."""
    took = [round(sample * 1e6) for sample in CALM]
    before: dict[str, Any] = {
        "core": 1, "clock_khz": 1.5 * GHZ, "clock_limit_khz": 1.5 * GHZ, "cpu_us": 0,
        "clock_most_khz": 1.5 * GHZ, "zone0_mc": 45000, "load_percent": 105, "throttled": 0,
        "involuntary_switches": 0, "major_faults": 0, "cycles": None,
    }  # fmt: skip
    after = before | {"cpu_us": took} | {k: v for k, v in facts.items() if k[:7] != "before_"}
    before |= {k[7:]: v for k, v in facts.items() if k[:7] == "before_"}
    return Conditions(columns(before), columns(after), 1, cores, 4, "", slow)


def columns(facts: dict[str, Any]) -> defaultdict[str, tuple[int | None, ...]]:
    rows = {k: v if isinstance(v, (list, tuple)) else [v] * ROWS for k, v in facts.items()}
    return defaultdict(
        lambda: (None,) * ROWS,
        {k: tuple(None if x is None else int(x) for x in v) for k, v in rows.items()},
    )


def timing(samples: tuple[float, ...] = CALM, threads: int = 1, **facts: Any) -> Timing:
    return Timing(samples, (1,) * len(samples), False, threads, conditions(**facts))


def stepped(first: float, then: float, at: int = ROWS // 2) -> list[float]:
    return [first] * at + [then] * (ROWS - at)


@pytest.mark.parametrize("cores", [(0, 1, 2, 3), (4, 5), (1,)])
def test_a_calm_board_is_trusted(cores: tuple[int, ...]) -> None:
    judgement = judge(timing(cores=cores, core=cores[0], before_core=cores[0], slow=(4, 5)))
    assert (judgement.verdict, judgement.findings) == ("ok", ())


CASES: dict[str, tuple[Timing, str, str]] = {
    "the clock falls": (
        timing(clock_khz=stepped(1.5 * GHZ, 1.2 * GHZ), zone0_mc=stepped(65000, 82000)),
        "throttled",
        "the clock was 1.20 to 1.50 GHz at 82 °C; try: a heat sink or a fan; cooldown_interval_ms",
    ),
    "the clock follows the load": (
        timing(clock_khz=stepped(0.6 * GHZ, 1.5 * GHZ, 4)),
        "throttled",
        "the clock was 0.60 to 1.50 GHz; try: echo performance | sudo tee "
        "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ),
    "the clock stays low": (
        timing(clock_khz=0.6 * GHZ),
        "throttled",
        "the clock stayed at 0.60 of 1.50 GHz; try: echo performance | sudo tee "
        "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ),
    "the kernel lowers the limit": (
        timing(clock_khz=None, clock_limit_khz=stepped(1.5 * GHZ, 1.4 * GHZ), zone0_mc=80000),
        "throttled",
        "the clock's limit was 1.40 to 1.50 GHz at 80 °C; try: a heat sink or a fan; "
        "cooldown_interval_ms",
    ),
    "hot from the beginning": (
        timing(clock_khz=1.0 * GHZ, clock_limit_khz=1.0 * GHZ, zone0_mc=85000),
        "throttled",
        "the clock was held at 1.00 of 1.50 GHz at 85 °C; try: a heat sink or a fan; "
        "cooldown_interval_ms",
    ),
    "a weak supply": (
        timing(throttled=0x50005),
        "throttled",
        "its supply was weak (get_throttled 0x50005); try: a stronger power supply",
    ),
    "cycles tell the clock": (
        timing(
            clock_khz=None, clock_limit_khz=None, before_cycles=0,
            cycles=[1500 * 10000] * 10 + [1000 * 10000] * 10,
        ),
        "throttled",
        "the clock was 1.00 to 1.50 GHz; try: echo performance | sudo tee "
        "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ),
    "it leaves its cores": (
        timing(core=[1] * 19 + [6], cores=(0, 1, 2, 3)),
        "migrated",
        "it ran on core 6, and was to stay on 0-3; try: leave cores to it: cpusets, taskset, "
        "offline cores",
    ),
    "fast and slow cores together": (
        timing(threads=6, cores=(0, 1, 2, 3, 4, 5), slow=(0, 1)),
        "migrated",
        "6 threads shared fast cores and slow ones; try: at most 4 threads, or cores of one kind",
    ),
    "samples apart": (
        timing(tuple(0.010 * (1 + 0.2 * (i % 3)) for i in range(ROWS)), cpu_us=20000),
        "noisy",
        "samples are 16.7% from their median; try: a larger min_repeat_ms or repeat",
    ),
    "interrupted": (
        timing(
            tuple(0.010 * (1 + 0.2 * (i % 3)) for i in range(ROWS)),
            cpu_us=20000, involuntary_switches=30, before_load_percent=320,
        ),
        "noisy",
        "samples are 16.7% from their median (interrupted 600 times, load 3.2); try: end other "
        "programs (top), or wait",
    ),
    "swapped": (
        timing((*CALM[:16], *[0.02] * 4), cpu_us=20000, major_faults=2),
        "noisy",
        "4 of 20 samples are far from the others (memory was fetched from the disk 40 times); "
        "try: a board with more memory, or fewer programs on it",
    ),
    "slower and slower": (
        timing(tuple(0.010 * 1.005**i for i in range(ROWS)), cpu_us=20000),
        "noisy",
        "the last samples are 7.2% slower than the first; try: warm up longer (min_repeat_ms); a "
        "heat sink or a fan; cooldown_interval_ms",
    ),
    "steadily shared with another program": (
        timing(cpu_us=[round(5000 * (1 + i % 2 / 9)) for i in range(ROWS)]),
        "noisy",
        "it had 53% of its core; try: end other programs (top), or wait",
    ),
    "an emulator": (
        Timing(CALM, (1,) * ROWS, True, 1, conditions(clock_khz=stepped(1, 9))),
        "emulated",
        "an emulator's seconds are not those of a board; try: count instructions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdicts_and_their_reasons(name: str) -> None:
    measured, verdict, reason = CASES[name]
    judgement = judge(measured)
    assert (judgement.verdict, str(judgement.findings[0])) == (verdict, reason)
    assert f"{verdict}: {reason}" in str(measured)
    record = json.loads(json.dumps(measured.record()))
    assert record["verdict"] == verdict and record["findings"][0]["what"] in reason
    assert (record["conditions"] is None) == (verdict == "emulated")


def test_what_is_well() -> None:
    """What a rule must not take for its fault."""
    for calm in (
        timing(clock_khz=1.0 * GHZ, clock_limit_khz=1.0 * GHZ),  # held down on purpose, and cool
        timing(clock_khz=[1.5 * GHZ - 20_000 * (i % 3) for i in range(ROWS)]),  # reading errors
        timing(clock_khz=[0.6 * GHZ] + [1.5 * GHZ] * (ROWS - 1)),  # one reading of twenty
        timing(throttled=0x50000),  # since it was started, not while it was timed
        timing(core=[i % 4 for i in range(ROWS)]),  # among cores of one kind
        timing((*CALM[:-1], 0.05)),  # a single far sample is what medians are for
        timing(threads=4, cpu_us=9000),  # threads wait for each other
        timing(involuntary_switches=1),
        Timing(CALM, (1,) * ROWS),  # nothing is known of conditions
        Timing((0.01,), (1,)),
    ):
        assert judge(calm).verdict == "ok", judge(calm).findings


def test_the_cause_comes_before_what_it_causes() -> None:
    slowed = tuple(stepped(0.010, 0.0125))
    judgement = judge(timing(slowed, cpu_us=20000, clock_khz=stepped(1.5 * GHZ, 1.2 * GHZ)))
    assert judgement.verdict == "throttled"
    assert [f.what for f in judgement.findings] == [
        "the clock was 1.20 to 1.50 GHz",
        "samples are 11.1% from their median",
        "the last samples are 25.0% slower than the first",
    ]


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60), st.floats(1e-3, 1e3))
def test_statistics_have_no_unit(samples: list[float], unit: float) -> None:
    """Seconds or hours: the same samples stand out, and drift is the same."""
    scaled = [unit * sample for sample in samples]
    assert drift(scaled) == pytest.approx(drift(samples), rel=1e-9, abs=1e-9)
    measured, again = Timing(tuple(samples), (1,) * len(samples)), Timing(tuple(scaled), (1,))
    assert again.mad == pytest.approx(unit * measured.mad, abs=1e-9 * unit * measured.median)
    far = set(outliers(samples))
    median = measured.median
    assert all(abs(samples[i] - median) > 0.02 * median for i in far)
    assert 2 * len(far) <= len(samples)  # the nearer half decides what is far
    low, high = min(samples), max(samples)
    assert low <= measured.median <= measured.p95 <= high and measured.mad <= high - low
    assert measured.verdict in ("ok", "noisy") and math.isfinite(measured.drift)


def test_drift_and_outliers() -> None:
    assert drift([1, 2, 3, 4, 5]) == 0  # too few
    assert drift([1, 1, 9, 9, 2, 2]) == 1
    assert outliers([1.0] * 9 + [1.01]) == () and outliers([1.0] * 9 + [1.1]) == (9,)


def test_counts_per_run() -> None:
    counted = conditions(before_cycles=100, cycles=30100)
    measured = Timing(CALM, (3,) * ROWS, conditions=counted)
    assert measured.per_run("cycles") == 10000 and measured.per_run("instructions") is None
    pairs = Conditions(
        {"cycles": (0, 500)}, {"cycles": (400, 700)}, each=2
    )  # the last row has one sample
    assert Timing((1, 1, 1), (2, 2, 1), conditions=pairs).per_run("cycles") == 150


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_cores_as_text(cores: set[int]) -> None:
    assert core_numbers(ranges(sorted(cores))) == cores


def test_cores_that_are_none() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and core_numbers("5,0-2,1") == {0, 1, 2, 5}
    for text in ("", "fat", "1-", "-1", "3-1", "1,,2", "1.5", " 1", "²", "0-99999"):
        with pytest.raises(ValueError, match=f"'{text}' does not name cores"):
            core_numbers(text)


def test_answers_of_older_boards_have_no_conditions() -> None:
    assert parse_conditions({"samples": [1.0], "number": [1], "facts": ()}, [], 4, ()) is None
    torn = {"facts": ["core"], "before": [[1]], "after": [[1, 2]], "cores": [0], "each": 1}
    whole = parse_conditions(
        torn | {"after": [[1]], "cores": [0, 2]}, ["a72", "a53", "a72"], 2, (1,)
    )
    assert whole and whole.cluster == "a72" and whole.after["cycles"] == (None,)
    with pytest.raises(ValueError):
        parse_conditions(torn, [], 4, ())


def test_numbers_are_of_the_samples() -> None:
    samples = np.random.default_rng(0).lognormal(-5, 0.1, 101)
    measured = Timing(tuple(samples.tolist()), (1,) * 101)
    assert measured.median == np.median(samples)
    assert measured.mad == pytest.approx(np.median(np.abs(samples - np.median(samples))))
    assert measured.p95 == np.percentile(samples, 95, method="inverted_cdf")
