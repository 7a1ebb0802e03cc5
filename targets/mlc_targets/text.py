"""Makes text from outside (models, records, boards) printable. Every message and every table goes
through here."""

from __future__ import annotations

MOST = 1000  # characters of a text
LONG = 10_000  # characters of a line of a message, which may list many names
INDENT = " " * 7  # of all lines but the first: deeper than our labels ("  try: ")


def shown(text: str, most: int = MOST) -> str:
    """Text on one line, cut after `most` characters. Characters that are not printable (ends of
    lines, ESC, marks of the writing direction) are escaped as Python does."""
    if len(text) > most:
        text = text[:most] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def paragraph(text: str) -> str:
    """Part of a message: each line as `shown`. All lines but the first are indented, so that none
    can pass for a label of ours ("  try: ")."""
    first, *others = (shown(line.expandtabs(), LONG) for line in text.split("\n"))
    return "\n".join((first, *(o if o[:4].isspace() else INDENT + o.lstrip() for o in others)))
