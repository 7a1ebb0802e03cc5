"""How operators are computed on any CPU."""

from .default import default_schedule
