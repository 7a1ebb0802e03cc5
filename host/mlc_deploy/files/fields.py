"""Reads JSON from anyone field by field, and checks each value: Malformed says where one is
wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}

MOST = 1e18  # no measured figure is so large, and computing with smaller ones is safe
NESTED = "it is nested too deeply for recursion"


class Malformed(ValueError):
    """A wrong value; the message says where and what."""


class NoJson(Malformed):
    """A text is not JSON; the message says why, and where if that is known. error: Python's own, if
    it is the form that is wrong."""

    def __init__(self, what: str, error: json.JSONDecodeError | None = None) -> None:
        super().__init__(what)
        self.error = error


def parsed(text: str | bytes) -> Field:
    """The value of a JSON text. Raises NoJson."""
    try:
        return Field(json.loads(text))
    except RecursionError:
        raise NoJson(NESTED) from None
    except json.JSONDecodeError as error:
        raise NoJson(str(error), error) from None
    except UnicodeDecodeError as error:
        raise NoJson(str(error)) from None
    except ValueError:  # Python's bound of a number's digits
        raise NoJson("a number has thousands of digits") from None


@dataclass(frozen=True, slots=True)
class Field:
    """A value and its path, such as layers[3].name. `field["key"]` is a field of an object; a
    missing key is null."""

    value: Any
    path: str = ""

    def __getitem__(self, key: str) -> Field:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return Field(self.value.get(key), f"{self.path}.{key}" if self.path else key)

    def __iter__(self) -> Iterator[Field]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for number, value in enumerate(self.value):
            yield Field(value, f"{self.path}[{number}]")

    def __bool__(self) -> bool:
        return self.value is not None

    def items(self) -> Iterator[tuple[str, Field]]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        for key, value in self.value.items():
            yield key, Field(value, f"{self.path}.{key}")

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def number(self) -> float:
        """A finite number. An int stays an int."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
            raise self.wrong("a number")
        return value

    def amount(self) -> float:
        """A number that is not negative."""
        value = self.number()
        if value < 0:
            raise Malformed(f"{self.path} is {value:g}, and must not be negative")
        return value

    def count(self) -> int:
        """A whole amount."""
        value = self.amount()
        if value != int(value):
            raise self.wrong("a whole number")
        return int(value)

    def whole(self, most: int) -> int:
        """A whole number from 0 to `most`."""
        value = self.count()
        if value > most:
            raise Malformed(f"{self.path} is {value:,}, and must be at most {most:,}")
        return value

    def maybe_whole(self, most: int) -> int | None:
        return self.whole(most) if self else None

    def maybe_text(self) -> str | None:
        return self.text() if self else None

    def maybe_flag(self) -> bool | None:
        return self.flag() if self else None

    def maybe_amount(self) -> float | None:
        return self.amount() if self else None

    def maybe_count(self) -> int | None:
        return self.count() if self else None

    def wrong(self, wanted: str) -> Malformed:
        found = KINDS.get(type(self.value), f"{self.value!r:.40}")
        return Malformed(f"{self.path or 'the file'} is {found}, and must be {wanted}")
