"""Worker processes: results in order, what a death costs and limits count, that none stays."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.driver.workers import (
    ATTEMPTS,
    GENTLE,
    WorkerDied,
    WorkerKilled,
    WorkerPool,
    WorkerTimeout,
)
from mlc_deploy.errors import LowerError
from tests.cli.command_process import PATIENCE, alive, until
from tests.driver.worker_tasks import (
    abort_at,
    divide,
    killed_at_first,
    leave_at,
    own_pid,
    refuse_from,
    square,
)

SLOW_TO_IMPORT = """
import time
while time.process_time() < 1:
    pass

def triple(n):
    return 3 * n
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell what works")


def each(
    pool: WorkerPool, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What each task gives, or how its process ended."""
    futures = [pool.submit(function, *task) for task in tasks]
    ends = [future.exception() for future in futures]
    return [
        end if isinstance(end, WorkerDied) else future.result()
        for end, future in zip(ends, futures, strict=True)
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_results_are_in_order(count: int) -> None:
    with WorkerPool(count) as pool:
        assert each(pool, square, [(n,) for n in range(20)]) == [n * n for n in range(20)]


@pytest.mark.parametrize(
    ("function", "how", "words"),
    [(abort_at, "SIGABRT", "LLVM ERROR: Cannot select"), (leave_at, "status 3", "")],
)
def test_a_death_costs_its_task_alone(
    function: Callable[[int, int], int], how: str, words: str
) -> None:
    with WorkerPool(2) as pool:
        found = each(pool, function, [(n, 3) for n in range(8)])
    died = found.pop(3)
    assert isinstance(died, WorkerDied)
    assert (died.how, died.words) == (how, words)
    assert found == [0, 1, 2, 4, 5, 6, 7]


def test_every_task_may_die() -> None:
    with WorkerPool(1) as pool:
        found = each(pool, abort_at, [(n, n) for n in range(3)])
    assert all(isinstance(result, WorkerDied) for result in found)


def test_the_first_error_in_the_order_of_tasks_is_raised() -> None:
    with WorkerPool(3) as pool, pytest.raises(LowerError) as caught:
        each(pool, refuse_from, [(n, 4) for n in range(9)])
    error = caught.value
    assert (error.what, error.where, error.mend) == ("task 4", "here", "there")
    assert str(error) == "task 4\n  in:  here\n  try: there"


def test_an_error_of_ours_shows_where_it_was_raised() -> None:
    with WorkerPool(1) as pool, pytest.raises(ZeroDivisionError) as caught:
        each(pool, divide, [(0,)])
    (note,) = caught.value.__notes__
    assert note.startswith("in a worker process:\nTraceback") and "return 1 / n" in note


class Unlike(Exception):
    """Cannot be unpickled: that calls it with what `args` holds."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


def raise_unlike() -> None:
    raise Unlike("fault", "line 3")


def test_an_answer_that_cannot_be_unpickled_costs_its_task_alone() -> None:
    with WorkerPool(1, seconds=5) as pool:
        with pytest.raises(WorkerDied) as died:
            pool.submit(raise_unlike).result(PATIENCE)
        assert pool.submit(square, 3).result(PATIENCE) == 9
    assert died.value.how == "an answer that cannot be unpickled"
    assert died.value.words.startswith("TypeError: Unlike.__init__() missing 1 required")


def test_a_task_without_end_is_ended_and_the_next_one_gets_another_process() -> None:
    with WorkerPool(1, seconds=0.2) as pool:
        endless = pool.submit(math.factorial, 10**7)
        with pytest.raises(WorkerTimeout, match=r"no end in 0.2 s"):
            endless.result(PATIENCE)
        assert pool.submit(math.factorial, 5).result(PATIENCE) == 120


@linux
def test_a_limit_counts_work_so_that_waiting_for_a_core_is_no_fault() -> None:
    with WorkerPool(1, seconds=0.1) as pool:
        pool.submit(time.sleep, 0.4).result(PATIENCE)
        with pytest.raises(WorkerTimeout):  # though not for ever
            pool.submit(time.sleep, 2 * PATIENCE).result(PATIENCE)


@linux
def test_a_limit_does_not_count_what_a_worker_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    triple = importlib.import_module("slow_to_import").triple
    with WorkerPool(1, seconds=0.2) as pool:
        assert pool.submit(triple, 5).result(PATIENCE) == 15


def test_workers_import_before_their_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = tmp_path / "imported"
    (tmp_path / "marking.py").write_text(f"open({str(marked)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool(1, imports="marking"):
        assert until(marked.exists)


@linux
def test_gentle_workers_leave_the_cores_to_others() -> None:
    with WorkerPool(1, gently=True) as pool:
        assert pool.submit(os.getpriority, os.PRIO_PROCESS, 0).result(PATIENCE) == GENTLE


@linux
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="cores are not shared so")
def test_gentle_workers_are_sessions_that_leave_the_cores_to_others() -> None:
    own = Path("/proc/self/autogroup").read_text()
    with WorkerPool(3, gently=True) as pool:
        found = [pool.submit(Path.read_text, Path("/proc/self/autogroup")) for _ in range(3)]
        assert {f.result(PATIENCE).split()[-1] for f in found} == {str(GENTLE)}
    assert Path("/proc/self/autogroup").read_text() == own


WAITING = """
import sys
from mlc_deploy.driver.workers import WorkerPool
from tests.driver.worker_tasks import wait
with WorkerPool(2, forked=len(sys.argv) > 3) as pool:
    futures = [pool.submit(wait, sys.argv[1], float(sys.argv[2])) for _ in range(9)]
    [f.result() for f in futures]
"""


def test_a_task_whose_process_the_system_kills_is_done_again(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        assert pool.submit(killed_at_first, str(tmp_path / "few"), ATTEMPTS - 1).result() == 2
        always = pool.submit(killed_at_first, str(tmp_path / "always"), 1000).exception()
        assert isinstance(always, WorkerKilled) and always.how == "SIGKILL"
        assert len((tmp_path / "always").read_text()) == ATTEMPTS
        assert pool.submit(square, 3).result() == 9


def test_an_idle_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        first = pool.submit(own_pid).result()
        os.kill(first, signal.SIGKILL)
        assert pool.submit(own_pid).result() != first


@pytest.mark.parametrize("forked", [[], pytest.param(["forked"], marks=linux)])
@pytest.mark.parametrize(("end", "seconds"), [(signal.SIGINT, "600"), (signal.SIGKILL, "1")])
def test_no_worker_stays(
    end: signal.Signals, seconds: str, forked: list[str], tmp_path: Path
) -> None:
    """An interrupt ends them at once. Where there is no one left to do it, they end with their
    task. That the script has no guard for `__main__` is no trouble either."""
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, script, tmp_path, seconds, *forked],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2)
        workers = [int(path.name) for path in tmp_path.glob("[0-9]*")]
        process.send_signal(end)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == -end
    assert ("KeyboardInterrupt" in said) == (end == signal.SIGINT)
    assert until(lambda: not any(map(alive, workers)))


COPIES = """
import json
from mlc_deploy.driver.workers import WorkerDied, WorkerPool
from tests.driver.worker_tasks import abort_at, square
with WorkerPool(2, imports="tests.driver.worker_tasks", forked=True) as pool:
    futures = [pool.submit(abort_at, n, 3) for n in range(8)]
    found = []
    for future in futures:
        try:
            found.append(future.result())
        except WorkerDied as died:
            found.append([died.how, died.words])
    squares = [pool.submit(square, n).result() for n in range(4)]
print(json.dumps([found, squares]))
"""


@linux
def test_copies_answer_and_die_as_others_do(tmp_path: Path) -> None:
    """The process in the place of one that died is spawned."""
    script = tmp_path / "script.py"
    script.write_text(COPIES)
    found = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert found.stderr == ""
    died = ["SIGABRT", "LLVM ERROR: Cannot select"]
    assert json.loads(found.stdout) == [[0, 1, 2, died, 4, 5, 6, 7], [0, 1, 4, 9]]


ORPHAN = """
import math, os, signal, time
def orphan(file):
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    with open(file + ".part", "w") as pid:
        pid.write(str(os.getpid()))
    os.rename(file + ".part", file)
    math.factorial(10**7)  # as LLVM may be: for minutes without a look at Python's signals
"""
PARENT = """
import sys
from mlc_deploy.driver.workers import WorkerPool
from orphan import orphan
with WorkerPool(1, seconds=0.1) as pool:
    pool.submit(orphan, sys.argv[1]).result()
"""


@linux
def test_a_task_without_end_ends_though_its_parent_is_gone(tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(PARENT)
    (tmp_path / "orphan.py").write_text(ORPHAN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.run([sys.executable, script, file], env=environment)
    assert parent.returncode == -signal.SIGKILL
    assert until(file.exists)  # so it has outlived its parent
    worker = int(file.read_text())
    assert until(lambda: not alive(worker))
