"""Pages and traces of measurements, made from records only: nothing here runs or compiles."""

from __future__ import annotations

from .page import run_page as run_page
from .record import parse_run as parse_run
from .record import read_run as read_run
from .trace import run_trace as run_trace
from .tuning import Plan as Plan
from .tuning import Task as Task
from .tuning import Trial as Trial
from .tuning import tuning_page as tuning_page

__all__ = ["Plan", "Task", "Trial", "parse_run", "read_run", "run_page", "run_trace", "tuning_page"]
