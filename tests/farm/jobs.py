"""Tasks of the tests' farms: members run these beside their own."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlc_deploy.driver.builder import build_object
from mlc_deploy.tune.runner import measure
from mlc_rpc import Lost, Refused
from tests.driver.worker_tasks import killed_at_first


def build_asleep(seconds: float) -> None:
    """Stands for a build."""
    time.sleep(seconds)


def run_asleep(_: Any, seconds: float) -> float:
    """Stands for a run on a board; when it ended."""
    time.sleep(seconds)
    return time.time()


def span(board: Any, seconds: float) -> tuple[tuple[int, int], float, float]:
    """Which process and board ran, from when to when."""
    began = time.time()
    time.sleep(seconds)
    return (os.getpid(), id(board)), began, time.time()


def refuse(board: Any) -> None:
    raise Refused("no", board=board.url)


def lose(board: Any, marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).write_text("")
        raise Lost("power", board=board.url)
    return "done"


def told(_: Any, text: str) -> str:
    return text


def build_wrongly(func: Any, target: Any) -> bytes:
    """A member's build that is another object than the right one, of the same length."""
    right = build_object(func, target)
    return right[:-1] + bytes([right[-1] ^ 1])


def count_wrongly(board: Any, request: Any) -> Any:
    """A member's measurement that is better than the right one."""
    right = measure(board, request)
    fewer = None if right.instructions is None else right.instructions // 2
    return replace(right, instructions=fewer)


def register() -> None:
    from mlc_deploy.farm import tasks

    tasks.BUILD_TASKS.update({f.__name__: f for f in (build_asleep, killed_at_first)})
    tasks.BOARD_TASKS.update({f.__name__: f for f in (run_asleep, span, refuse, lose, told)})


if __name__ == "__main__":
    from mlc_deploy.cli.main import main
    from tests.farm import jobs  # under its own name, as builders import it

    jobs.register()
    if os.environ.get("MLC_TEST_MEMBER") == "lies":
        from mlc_deploy.farm import tasks

        tasks.BUILD_TASKS["build_object"] = jobs.build_wrongly
        tasks.BOARD_TASKS["measure"] = jobs.count_wrongly
    sys.exit(main(sys.argv[1:]))
