"""HTML and SVG as values. Only `h` turns text into markup, and it escapes the text.

    h("td", name, class_="number")      =>      <td class="number">&lt;/script&gt;</td>

Names in a page come from a model and may contain anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from mlc_targets.text import shown

VOID = frozenset(("circle", "line", "path", "rect", "use", "meta"))
MOST_TEXT = 400  # characters of a name


class Html(str):
    """Markup. Everything else is escaped."""

    __slots__ = ()


Content: TypeAlias = Html | str | float | Iterable["Content"] | None


def h(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Html:
    """An element. In an attribute's name, a final "_" is dropped and "_" becomes "-". True gives
    the name without a value; None and False omit the attribute."""
    pairs = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(_attribute(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{pairs}/>")
    return Html(f"<{name}{pairs}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """Contents joined; text in them is escaped."""
    return Html("".join(map(_markup, content)))


def _markup(content: Content) -> str:
    match content:
        case Html():
            return content
        case str():
            return escape(shown(content, MOST_TEXT), quote=True)
        case None:
            return ""
        case int() | float():
            return number(content)
        case parts:
            return "".join(map(_markup, parts))


def _attribute(value: str | float) -> str:
    return shown(value, MOST_TEXT * 4) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """A number in a drawing, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
