"""Text from outside, shown as text: what a board, a shell or a stranger says is data, whatever is
in it. mlc_targets has the same, since neither package imports the other; a test compares them."""

from __future__ import annotations

MOST = 1000  # characters of a text
MOST_LINES = 40  # of a quotation
LONG = 10_000  # characters of a message's line, which may list much
INDENT = " " * 7  # of the lines below the first, deeper than any label of ours


def shown(text: str, most: int = MOST) -> str:
    """Text on one line: what is not printable (ends of lines, ESC, marks that turn the direction of
    writing) is escaped as Python does it, and what is longer than `most` is cut."""
    if len(text) > most:
        text = text[:most] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def paragraph(text: str) -> str:
    """Part of a message, of one line or several: each as `shown`. All but the first are indented:
    none can pass for one with a label of ours ("  try: ")."""
    first, *others = (shown(line.expandtabs(), LONG) for line in text.split("\n"))
    return "\n".join((first, *(o if o[:4].isspace() else INDENT + o.lstrip() for o in others)))


def quoted(text: str) -> str:
    """What a program or a shell has said: one line as it is; several below each other, each behind
    a bar, and of very many the last."""
    lines = [shown(line.expandtabs()) for line in text.strip().splitlines()]
    if len(lines) < 2:
        return "".join(lines)
    return "".join(f"\n{INDENT}| {line}" for line in lines[-MOST_LINES:])
