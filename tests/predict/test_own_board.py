"""A board's own figures: what they are fitted to, how they are kept, and what predictions say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from mlc_deploy.predict import calibration
from mlc_deploy.predict.calibration import Calibration, Factors, Row, calibrated, fit, from_json
from mlc_deploy.predict.counting import Counts, forecast
from mlc_deploy.predict.model import predict, work_of
from mlc_targets import Target
from mlc_targets.cores import Speed, speed

# Instructions in thousands, and lines that the first and the last cache fetch, of five networks:
# some compute, some wait.
NETWORKS = [(9000, 800, 300), (4000, 4000, 90), (500, 900, 90_000), (1500, 300, 60_000), (80, 9, 1)]


def counts(thousands: int, first: int, last: int) -> Counts:
    classes = ("mac", "vector", "load", "store", "branch", "scalar")
    return (
        {name: 1000 * thousands * n // 21 for n, name in enumerate(classes, 1)},
        {f"{kib}K": first + last for kib in (32, 64)}
        | {f"{kib}K": last for kib in (128, 256, 512, 1024, 2048, 4096)},
    )


def rows_on(base: Speed, factors: Factors, noise: float = 0.0) -> list[Row]:
    """What a board with these factors takes, each network now longer and now shorter by `noise`."""
    rows = []
    for number, network in enumerate(NETWORKS):
        layers = (counts(*network), counts(*network))
        for threads in (1, 4):
            own = factors.on(base)
            ms = predict([work_of(*c, own, threads) for c in layers], own, threads).ms
            ms *= factors.threads if threads > 1 else 1.0
            ms *= math.exp(noise * (-1) ** number)
            rows.append(Row(f"net {number}", threads, ms, layers))
    return rows


def known(core: str) -> Speed:
    found = speed(core)
    assert found is not None
    return found


def board(rows: list[Row], core: str = "cortex-a72") -> Calibration:
    return calibrated(
        rows, board="attic", url="ssh://attic", cpu=core, cores=4, memory=1 << 30,
        target="raspberry-pi/4b", base=known(core), chip="", like=False, date="2026-11-24",
    )  # fmt: skip


@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a72"])
def test_factors_are_found_again(core: str) -> None:
    """In order and out of order."""
    there = Factors(1.31, 0.72, 1.2)
    found = fit(known(core), rows_on(known(core), there))
    assert found.factors.computing == pytest.approx(1.31, rel=0.01)
    assert found.factors.memory == pytest.approx(0.72, rel=0.02)
    assert found.factors.threads == pytest.approx(1.2, rel=0.01)
    low, high = found.interval
    assert found.error < 0.01 and low == pytest.approx(1 / 1.0305, rel=1e-3) and low * high == 1


def test_an_interval_is_as_wide_as_the_errors_are() -> None:
    quiet, noisy = (fit(known("cortex-a72"), rows_on(known("cortex-a72"), Factors(1, 1, 1), noise))
                    for noise in (0.0, 0.2))  # fmt: skip
    assert noisy.interval[1] > quiet.interval[1] * 1.2
    assert 0.1 < noisy.error < 0.5


def test_an_interval_is_as_wide_as_most_spreads_are() -> None:
    """Of times of a disturbed board; one of many that were disturbed is no matter."""
    base = known("cortex-a72")
    rows = rows_on(base, Factors(1, 1, 1))
    disturbed = fit(base, [replace(row, spread=0.3) for row in rows])
    assert disturbed.interval == pytest.approx((1 / 1.3, 1.3))
    assert disturbed.factors == fit(base, rows).factors
    seven = [replace(rows[0], name=str(n)) for n in range(7)]
    assert fit(base, [replace(seven[0], spread=0.3), *seven[1:]]).interval[1] < 1.05


def test_memory_goes_with_computing_where_nothing_tells_them_apart() -> None:
    base = known("cortex-a72")
    layers = (counts(5000, 0, 0),)
    took = 3 * predict([work_of(*c, base) for c in layers], base).ms
    found = fit(base, [Row("net", 1, took, layers)])
    assert found.factors.computing == pytest.approx(3, rel=1e-3)
    assert found.factors.memory == pytest.approx(3, rel=1e-3)


def test_a_measurement_refines_and_replaces_the_one_before() -> None:
    base = known("cortex-a72")
    own = board(rows_on(base, Factors(1, 1, 1)))
    slower = rows_on(base, Factors(1.5, 1.5, 1))
    better = own.with_rows(slower[:4], "2026-11-25")
    assert len(better.rows) == len(own.rows) and better.date == "2026-11-25"
    assert better.rows[-4:] == tuple(slower[:4])
    assert 1.05 < better.fitted.factors.computing < 1.5
    many = [replace(slower[0], name=f"more {n}") for n in range(calibration.MOST_ROWS)]
    assert better.with_rows(many, "").rows == tuple(many)


def test_predictions_for_a_calibrated_board() -> None:
    own = board(rows_on(known("cortex-a72"), Factors(1.4, 1.4, 1.1), 0.1))
    layers = [counts(*network) for network in NETWORKS]
    usual = forecast(Target("raspberry-pi/4b"), layers)
    found = forecast(Target("raspberry-pi/4b"), layers, own)
    assert usual and found and usual.record()["calibrated"] is None
    assert found.one.ms == predict([work_of(*c, own.speed) for c in layers], own.speed).ms
    assert 1.2 < found.one.ms / usual.one.ms < 1.6
    low, high = own.fitted.interval
    assert (found.one.low, found.one.high) == (found.one.ms * low, found.one.ms * high)
    four = predict([work_of(*c, own.speed, 4) for c in layers], own.speed, 4).ms
    assert found.threads == {1: found.one.ms, 4: four * own.fitted.factors.threads}
    assert found.record()["calibrated"] == {
        "board": "attic", "date": "2026-11-24", "cpu": "cortex-a72", "like": False,
    }  # fmt: skip


def test_what_is_kept_is_read_again_and_fitted_anew_to_other_figures() -> None:
    rows = rows_on(known("cortex-a72"), Factors(1.4, 0.9, 1.1), 0.1)
    own = board([replace(row, spread=0.25) for row in rows])
    body = json.loads(json.dumps(own.as_json()))
    again = from_json(body)
    assert again.as_json() == own.as_json() and again.fitted == own.fitted
    body["factors"] = {"computing": 9.0, "memory": 9.0, "threads": 9.0}
    assert from_json(body).fitted.factors == Factors(9.0, 9.0, 9.0)
    body["base"]["vector"] += 0.1  # a version of this package that knew other figures
    assert from_json(body).fitted == own.fitted


def changed(**values: Any) -> Any:
    return board(rows_on(known("cortex-a72"), Factors(1, 1, 1))).as_json() | values


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([], "it is not whole (TypeError: list indices must be integers or slices, not str)"),
        (changed(form=2), "it is of form 2, and this is 1"),
        (changed(core="cortex-m4"), "nothing is known of the core 'cortex-m4'"),
        (changed(rows=[]), "it holds no measurement with one thread"),
        (changed(interval=[-1, 2]), "-1 is not a number above 0"),
        (changed(cores="4"), "'4' is not of type int"),
        (changed(rows=[{"name": "a", "threads": 1, "ms": 1.0, "layers": [], "spread": -0.1}]),
         "-0.1 is not a share"),
        (changed(rows=[{"name": "a", "threads": 1, "ms": 1.0}]),
         "it is not whole (KeyError: 'layers')"),
    ],
)  # fmt: skip
def test_files_that_are_none(body: Any, why: str) -> None:
    with pytest.raises(ValueError) as error:
        from_json(body)
    assert str(error.value) == why
