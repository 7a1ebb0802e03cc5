"""How operators are computed on any CPU."""

from .default import default_schedule

__all__ = [
    "default_schedule",
]
