"""The errors of this package: what is wrong, where, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .text import paragraph


class TargetError(ValueError):
    """An invalid target. `str` gives up to three lines: what, `in:` where, `try:` how."""

    def __init__(self, what: str, hint: str = "", where: str = "") -> None:
        self.what, self.hint, self.where = what, hint, where
        lines = [paragraph(what)]
        if where:
            lines.append(f"  in:  {paragraph(where)}")
        if hint:
            lines.append(f"  try: {paragraph(hint)}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[TargetError], tuple[str, str, str]]:
        return TargetError, (self.what, self.hint, self.where)


def nearest(name: str, known: Iterable[str], count: int = 4) -> tuple[str, ...]:
    """The most likely corrections of `name` among `known`, the best first; possibly none."""
    names = sorted(set(known))
    lower = {n.lower(): n for n in names}
    close = get_close_matches(name.lower(), lower, n=count, cutoff=0.6)
    begin = [n for n in lower if len(name) >= 3 and n.startswith(name.lower())]
    return tuple(lower[n] for n in dict.fromkeys(close + begin))[:count]


def suggest(name: str, known: Iterable[str]) -> str:
    """`nearest` as the text of a hint; all of `known` when it is short and nothing is near."""
    names = sorted(set(known))
    near = nearest(name, names)
    if near:
        return " or ".join(near)
    return " or ".join(names) if len(names) <= 16 else ""
