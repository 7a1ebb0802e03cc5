"""Quotes what a program, a shell or a stranger has said."""

from __future__ import annotations

from mlc_targets.text import INDENT, shown

MOST_LINES = 40  # of a quotation


def quoted(text: str) -> str:
    """One line as it is; several below each other, each behind a bar, and only the last MOST_LINES
    of them."""
    lines = [shown(line.expandtabs()) for line in text.strip().splitlines()]
    if len(lines) < 2:
        return "".join(lines)
    return "".join(f"\n{INDENT}| {line}" for line in lines[-MOST_LINES:])
