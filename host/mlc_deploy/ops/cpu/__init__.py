"""How operators are computed on any CPU."""

from .default import default_schedule, schedule_apart

__all__ = [
    "default_schedule",
    "schedule_apart",
]
