"""Measuring on a board that is there: what it costs, and every way in which a candidate is bad."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import Target, te
from mlc_deploy.driver.builder import build_object
from mlc_deploy.ir import PrimFunc, structural_hash
from mlc_deploy.tune.boards import Board, Incident
from mlc_deploy.tune.extract import task_of
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.reference import reference_of
from mlc_deploy.tune.runner import (
    Request,
    measure,
    run_limit,
    settled,
    tensors_of,
    timed,
    wrong_elements,
)
from tests.tune.searches import HOST, matmul_task

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with mlc.connect("local://") as session:
        yield Board("local://", session, report=lambda _: None)


def request_for(task: Task, **changes: Any) -> Request:
    code = build_object(task.default(task.func), task.target)
    made = Request(
        task=task.name,
        workload=task.workload,
        object=code,
        reference=code,
        tensors=tensors_of(task),
        objective="seconds",
        best=inf,
    )
    return replace(made, **changes)


def elementwise(f: Any, *dtypes: str, n: int = 64) -> PrimFunc:
    params = [te.placeholder((n,), d, f"p{i}") for i, d in enumerate(dtypes)]
    out = te.compute((n,), lambda i: f(i, *params), name="out")
    return te.create_prim_func([*params, out], "main")


def test_a_good_candidate_has_samples_and_a_verdict(board: Board) -> None:
    found = measure(board, request_for(matmul_task()))
    assert found.verdict == "ok" and not found.message
    assert len(found.seconds) >= 3 and all(s > 0 for s in found.seconds)
    assert min(found.seconds) < 0.01
    assert found.timing in ("ok", "noisy", "migrated", "throttled")


def test_what_is_far_from_the_best_is_timed_once(board: Board) -> None:
    found = measure(board, request_for(matmul_task(), best=1e-9))
    assert found.verdict == "ok" and len(found.seconds) == 1


def test_a_wrong_result_does_not_count_but_only_the_best_are_compared(board: Board) -> None:
    twice = task_of(elementwise(lambda i, x: x[i] * 2.0, "float32"), HOST)
    thrice = task_of(elementwise(lambda i, x: x[i] * 3.0, "float32"), HOST)
    wrong = build_object(thrice.default(thrice.func), HOST)
    found = measure(board, request_for(twice, object=wrong))
    assert (found.verdict, found.message) == ("wrong", "output 0: 64 of 64 elements are wrong")
    assert found.cost("seconds") == inf
    assert measure(board, request_for(twice, object=wrong, best=1e-9)).verdict == "ok"
    assert measure(board, request_for(twice)).verdict == "ok"


def test_a_kernel_that_writes_nothing_is_wrong(board: Board) -> None:
    task = task_of(elementwise(lambda i, x: x[i], "float32"), HOST)
    other = task_of(elementwise(lambda i, x: x[i], "float32", n=32), HOST)
    half = build_object(other.default(other.func), HOST)
    measure(board, request_for(task))  # leaves the expected outputs in the tensors
    assert measure(board, request_for(task, object=half)).verdict in ("wrong", "refused")


@pytest.mark.parametrize("of_numpy", [True, False])
def test_a_kernel_that_writes_into_its_input_spoils_no_other(board: Board, of_numpy: bool) -> None:
    task = task_of(elementwise(lambda i, x: x[i] + 1.0, "float32"), HOST)
    request = request_for(task)
    if of_numpy:
        request = replace(request, reference=reference_of(task))
    board.state.clear()
    for more, best in ((2.0, inf), (3.0, inf), (4.0, 1e-9)):  # the last one is not even compared
        found = measure(board, replace(request, object=backwards(more), best=best))
        assert found.verdict == ("wrong" if best == inf else "ok")
        assert measure(board, request).verdict == "ok"


def backwards(more: float) -> bytes:
    """A kernel that writes into its first parameter what it makes of the second."""
    out = te.placeholder((64,), "float32", "out")
    x = te.compute((64,), lambda i: out[i] + more, name="x")
    task = task_of(te.create_prim_func([x, out], "main"), HOST)
    return build_object(task.default(task.func), HOST)


def test_a_crash_a_run_without_end_and_a_refusal_cost_one_candidate(board: Board) -> None:
    wild = task_of(
        elementwise(lambda i, x, k: x[k[i].astype("int32") * 65536], "float32", "int16"), HOST
    )
    found = measure(board, request_for(wild, reference=None))
    assert found.verdict == "crash" and "SIGSEGV" in found.message
    long = matmul_task(512, 512, 512)
    found = measure(board, request_for(long, seconds=0.001))
    assert found.verdict == "timeout" and found.cost("seconds") == inf
    foreign = matmul_task(target=Target("aarch64"))
    found = measure(board, request_for(foreign))
    assert found.verdict == "refused" and "aarch64" in found.message
    assert measure(board, request_for(matmul_task())).verdict == "ok"


class Steady:
    """A kernel that takes a millisecond; `asked` is how it was timed: runs, samples, ms of each."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def time_evaluator(self, number: int, repeat: int, milliseconds: int, **_: Any) -> Any:
        self.asked.append((number, repeat, milliseconds))
        return lambda *_: SimpleNamespace(
            samples=(0.001,) * repeat, median=0.001, verdict="ok", number=(number,)
        )


@pytest.mark.parametrize(
    ("best", "careful", "asked"),
    [
        (0.0001, False, [(1, 1, 0)]),  # far off
        (0.0009, False, [(1, 1, 0), (5, 3, 4)]),
        (0.001, False, [(1, 1, 0), (5, 3, 4), (11, 5, 10)]),  # it may be the best
        (inf, True, [(1, 1, 0), (22, 7, 20)]),
    ],
)
def test_the_better_a_candidate_the_better_it_is_timed(
    best: float, careful: bool, asked: list[tuple[int, int, int]]
) -> None:
    board = Board("a", cast(Any, None), report=lambda _: None)
    request = Request("conv", "w", b"", None, (), "seconds", best, careful)
    kernel = Steady()
    assert timed(board, request, cast(Any, kernel), ()).verdict == "ok"
    assert kernel.asked == asked


@pytest.mark.parametrize(
    ("objective", "best", "seconds", "limit"),
    [
        ("seconds", inf, 7.0, 7.0),  # nothing is known of it
        ("seconds", 1e-5, 7.0, 1.0),  # others may have the core for as long
        ("seconds", 0.05, 7.0, 5.0),
        ("seconds", 0.5, 7.0, 7.0),
        ("seconds", 2.0, 7.0, 20.0),  # a board with other work is not taken for a hung kernel
        ("instructions", 2e6, 7.0, 2.0),  # emulated
    ],
)
def test_a_run_may_take_longer_than_the_best_but_not_for_ever(
    objective: str, best: float, seconds: float, limit: float
) -> None:
    request = Request("conv", "w", b"", None, (), cast(Any, objective), best, seconds=seconds)
    assert run_limit(request) == pytest.approx(limit)


def test_a_board_remembers_few_tasks(board: Board) -> None:
    for n in (8, 16, 24):
        measure(board, request_for(matmul_task(n, n, n)))
    assert list(board.state["tensors"]) == [
        structural_hash(matmul_task(n, n, n).func) for n in (16, 24)
    ]


def timing(verdict: str, *samples: float) -> Any:
    return SimpleNamespace(verdict=verdict, samples=samples)


def asked(*timings: Any) -> tuple[tuple[tuple[float, ...], str], list[float], list[Incident]]:
    """What comes of timings that a board gives one after the other, with the pauses between."""
    incidents: list[Incident] = []
    slept: list[float] = []
    given = iter(timings)
    board = Board("a", cast(Any, None), report=incidents.append)
    request = Request("conv", "w", b"", None, (), "seconds", inf, cool=(10.0, 30.0))
    found = settled(lambda: next(given), board, request, slept.append)
    assert next(given, None) is None
    return found, slept, incidents


def test_a_throttled_board_pauses_and_what_it_timed_does_not_count() -> None:
    hot = timing("throttled", 9.0, 9.0)
    found, slept, incidents = asked(hot, hot, timing("ok", 1.0, 1.1))
    assert found == ((1.0, 1.1), "ok") and slept == [10.0, 30.0]
    assert [i.what for i in incidents] == ["throttled: 10 s to cool", "throttled: 30 s to cool"]
    assert {(i.board, i.task) for i in incidents} == {("a", "conv")}


def test_a_noisy_timing_is_repeated_and_all_samples_count_where_it_stays_so() -> None:
    noisy = timing("noisy", 1.0, 2.0)
    assert asked(noisy, timing("ok", 1.0))[0] == ((1.0,), "ok")
    found, slept, _ = asked(noisy, timing("migrated", 3.0, 4.0), noisy)
    assert found == ((1.0, 2.0, 3.0, 4.0, 1.0, 2.0), "noisy") and not slept


def test_a_board_that_does_not_cool_says_so() -> None:
    hot = timing("throttled", 9.0)
    found, slept, _ = asked(*[hot] * 5)
    assert found == ((9.0, 9.0, 9.0), "throttled") and len(slept) == 2


@needs_qemu
def test_an_emulated_board_counts_instructions() -> None:
    task = matmul_task(target=Target("aarch64"))
    with mlc.connect("qemu://cortex-a72") as session:
        if not session.counting:
            pytest.skip(f"instructions are not counted here: {session.why_not_counting}")
        emulated = Board("qemu://cortex-a72", session, report=lambda _: None)
        request = request_for(task, objective="instructions")
        one, two = measure(emulated, request), measure(emulated, request)
    assert one == two and one.instructions is not None
    assert 32 * 32 * 32 / 4 < one.instructions < 32 * 32 * 32


def test_integers_are_right_when_equal_and_floats_within_the_bounds_of_one_tensor() -> None:
    ints = np.arange(8, dtype=np.int32)
    assert wrong_elements(ints, ints) == 0
    assert wrong_elements(ints + (ints == 3), ints) == 1
    floats = np.linspace(-1, 1, 9, dtype=np.float32)
    assert wrong_elements(floats * np.float32(1.00005), floats) == 0
    assert wrong_elements(floats * np.float32(1.001), floats) == 8
    strange = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert wrong_elements(strange, strange) == 0
    assert wrong_elements(np.roll(strange, 1), strange) == 4
