"""The model of times: its parts by hand, its sums, and its bits."""

from __future__ import annotations

import math

import pytest

from mlc_deploy.predict.counting import fast_cores, forecast
from mlc_deploy.predict.model import Work, layer_ms, lines_of, predict
from mlc_targets import Target
from mlc_targets.caches import share_kib
from mlc_targets.calibrated import INTERVAL, JOIN, SERIAL
from mlc_targets.cores import Speed, core_names, predicted_boards, speed

IN_ORDER = Speed("a", True, 1000, 32, 512, 512, 1.0, 2.0, 0.5, 10.0, 20.0, 8.0, 1.0)
OUT = Speed("b", False, 1000, 32, 512, 512, 1.0, 2.0, 0.5, 10.0, 20.0, 8.0, 1.0)
WORK = Work(vector=4000, memory=1000, other=2000, l1_lines=100, last_lines=300)
COMPUTING = 4000 + 2000 + 1000 + 1000  # ns at 1 GHz
WAITING = 300 * 20


def test_in_order_cores_wait_and_others_do_so_in_part() -> None:
    assert layer_ms(WORK, IN_ORDER) == (COMPUTING + WAITING) / 1e6 == 0.014
    assert layer_ms(WORK, OUT) == math.sqrt(COMPUTING**2 + WAITING**2) / 1e6 == 0.01


def test_threads_share_computing_and_take_turns_at_memory() -> None:
    shared = COMPUTING * (SERIAL + (1 - SERIAL) / 4)
    turns = 300 * 8 + JOIN
    assert layer_ms(WORK, IN_ORDER, 4) == pytest.approx((shared + WAITING / 4 + turns) / 1e6)
    assert layer_ms(WORK, OUT, 4) == pytest.approx((math.hypot(shared, WAITING / 4) + turns) / 1e6)
    fetching = Work(0, 0, 0, 0, 300, layers=3)
    assert layer_ms(fetching, IN_ORDER, 4) == pytest.approx(
        (WAITING / 4 + 300 * 8 + 3 * JOIN) / 1e6
    )


@pytest.mark.parametrize(
    ("last", "threads", "share"),
    [(1024, 1, 1024), (1024, 4, 256), (2048, 3, 512), (256, 2, 128), (256, 4, 128), (512, 64, 128)],
)
def test_each_thread_has_its_part_of_the_last_cache(last: int, threads: int, share: int) -> None:
    assert share_kib(last, threads) == share


def test_threads_fetch_more_than_one_and_less_than_each_with_its_part() -> None:
    misses = {"32K": 900, "256K": 700, "512K": 500, "1024K": 100}
    assert lines_of(misses, 1024, 1) == 100
    assert lines_of(misses, 1024, 2) == 300
    assert lines_of(misses, 1024, 4) == 400


def test_layers_add_up_and_the_interval_is_around_them() -> None:
    made = predict([WORK] * 7 + [Work(1, 2, 3, 4, 5)] * 3, OUT)
    assert math.fsum(made.layers) == made.ms
    assert (made.low, made.high) == (made.ms * INTERVAL[0], made.ms * INTERVAL[1])
    assert INTERVAL[0] < 1 < INTERVAL[1]


def test_the_bits_of_a_prediction_are_pinned() -> None:
    """The same on every machine: nothing here comes from its C library."""
    other = Speed("c", False, 1777, 32, 512, 512, 0.97, 0.41, 0.27, 7.9, 11.3, 9.1, 1.013)
    works = [Work(10007 * n, 5003 * n, 3001 * n, 97 * n, 31 * n) for n in range(1, 40)]
    assert predict(works, other).ms.hex() == "0x1.7be1d84d1babdp+2"
    four = predict(works, other, 4)
    assert four.ms.hex() == "0x1.21c5a377c73e8p+1"
    assert math.fsum(four.layers) == four.ms


def test_every_core_and_board_has_sane_figures() -> None:
    for name in core_names():
        known = speed(name)
        assert known and min(known.vector, known.memory, known.other, known.line_ns) > 0
    for name in predicted_boards():
        target = Target(name)
        known = speed(target.mcpu, target.model)
        assert known and 0.5 < known.pace < 2 and known.mhz >= 700, name
        assert fast_cores(target) >= 1
    faster = [speed(name) for name in ("cortex-a53", "cortex-a72", "cortex-a76")]
    times = [layer_ms(WORK, each) for each in faster if each]
    assert times == sorted(times, reverse=True)


def test_no_forecast_without_a_known_core_or_its_caches() -> None:
    by_class = dict.fromkeys(("mac", "vector", "load", "store", "branch", "scalar"), 1000)
    misses = {"32K": 10, "256K": 7, "1024K": 5}
    found = forecast(Target("raspberry-pi/4b"), [(by_class, misses)])
    assert found and found.threads.keys() == {1, 4} and found.one.ms == found.threads[1]
    assert found.record()["core"] == "cortex-a72" and found.record()["mhz"] == 1800
    for missing in misses:
        fewer = {name: lines for name, lines in misses.items() if name != missing}
        assert forecast(Target("raspberry-pi/4b"), [(by_class, fewer)]) is None
    assert forecast(Target("rockchip/rk3288"), [(by_class, misses)]) is None  # a Cortex-A17
    assert forecast(Target("aarch64"), [(by_class, misses)]) is None
    alone = forecast(
        Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"), [(by_class, misses)]
    )
    assert alone and alone.threads.keys() == {1}
