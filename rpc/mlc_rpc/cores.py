"""Cores by name: "fast", "slow", or numbers such as 0-3 or 4,5. `describe` (wire.py) says which
cores a board has."""

from __future__ import annotations

import re
from collections.abc import Sequence

KINDS = ("fast", "slow")


def ranges(cores: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and parts[-1][-1] == core - 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def core_numbers(text: str) -> frozenset[int]:
    """The numbers in a text such as 0-3,6. Raises ValueError on other text."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"'{text}' does not name cores")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)
