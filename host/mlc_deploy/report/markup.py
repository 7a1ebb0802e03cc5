"""HTML and SVG as values: text becomes markup by `h` alone, which escapes it.

    h("td", name, class_="number")      =>      <td class="number">&lt;/script&gt;</td>

Names in a page are a model's, and may be anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from mlc_targets.text import shown

VOID = frozenset(("circle", "line", "path", "rect", "use", "meta"))
MOST_TEXT = 400  # characters of a name


class Html(str):
    """Markup. Nothing else is written to a page as it is."""

    __slots__ = ()


Content: TypeAlias = Html | str | float | Iterable["Content"] | None


def h(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Html:
    """An element. An attribute's name may end in "_", and has "-" for "_"; True is a name alone,
    None and False none."""
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
    """Contents one after the other; text in them is escaped."""
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
    """Of a drawing: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")
