"""A whole tuning over boards that say what they are told to, by itself and in processes that are
killed: for tests and the bench."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mlc_deploy.tune.measuring import Measuring
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.tune import State, tune_tasks
from mlc_deploy.tuned import Database, Objective
from tests.tune.searches import CountingBoards, Following, Naming, matmul_task

ROOT = Path(__file__).parents[2]
SIZES = ((16, 16, 16), (32, 16, 16))
TRIALS = 40


def tasks() -> list[Task]:
    return [matmul_task(*size) for size in SIZES]


def measuring(
    database: Database, boards: Any = None, objective: Objective = "instructions"
) -> Measuring:
    return Measuring(
        Naming(), boards or CountingBoards(), database, "a board", objective, "this run"
    )


def tuned(
    database: Database,
    boards: Any = None,
    *,
    trials: int = TRIALS,
    make: Any = Following,
    objective: Objective = "instructions",
    **options: Any,
) -> State:
    by = measuring(database, boards, objective)
    return tune_tasks(tasks(), by, make, trials=trials, batch=8, seed=5, **options)


def results(database: Database) -> list[tuple[str, str, str, float]]:
    return [(r.task, r.program, r.steps, r.cost) for r in database.records]


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from mlc_deploy.tuned import Database
from tests.tune.searches import CountingBoards
from tests.tune.whole import tuned
print("ready", flush=True)
tuned(Database(Path(sys.argv[2])), CountingBoards(lambda _: time.sleep(0.02)))
print("done", flush=True)
"""


def killed_and_resumed(path: Path, kills: int, seed: int) -> None:
    """Runs the tuning of `tuned` in processes of which so many are killed at random moments."""
    chance = random.Random(seed)
    command = [sys.executable, "-c", KILLED, str(ROOT), str(path)]
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if kills:
            time.sleep(chance.random() * 1.5)
            process.send_signal(signal.SIGKILL)
            kills -= 1
        rest = process.communicate(timeout=120)[0]
        if rest == "done\n" and not kills:
            return
