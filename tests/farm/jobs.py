"""Tasks of the tests' farms: members run these beside their own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

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


def register() -> None:
    from mlc_deploy.farm import work

    work.BUILD_TASKS.update({f.__name__: f for f in (build_asleep, killed_at_first)})
    work.BOARD_TASKS.update({f.__name__: f for f in (run_asleep, span, refuse, lose, told)})


if __name__ == "__main__":
    from mlc_deploy.cli.main import main
    from tests.farm import jobs  # under its own name, as builders import it

    jobs.register()
    sys.exit(main(sys.argv[1:]))
