"""The tasks of a farm, by the names that calls give them. A member runs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..driver.builder import build_object
from ..driver.deploy import deploy_on
from ..tune.runner import measure
from .work import set_aside, statuses

# The tasks of builders, of boards (their first argument is the board), and of members themselves.
BUILD_TASKS: dict[str, Callable[..., Any]] = {"build_object": build_object}
BOARD_TASKS: dict[str, Callable[..., Any]] = {"measure": measure, "deploy_on": deploy_on}
HOST_TASKS: dict[str, Callable[..., Any]] = {"statuses": statuses, "set_aside": set_aside}


def task_of(function: Callable[..., Any]) -> str:
    """The name of a task; "" if the function is none."""
    every = BUILD_TASKS | BOARD_TASKS | HOST_TASKS
    return next((name for name, known in every.items() if known is function), "")
