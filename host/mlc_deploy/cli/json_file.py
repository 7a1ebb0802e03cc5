"""--json FILE: the record of a job, beside what is shown to people."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TextIO

import click

from ..errors import writing
from .options import writable
from .tables import Record

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class JsonFile:
    """What --json says: a file, "-" for stdout, or nothing. Raises Misuse for a file that cannot be
    written."""

    text: str | None

    def __post_init__(self) -> None:
        if self.text and self.text != STDOUT:
            writable("--json", self.text)

    @property
    def beside(self) -> TextIO:
        """Where to show what is for people: stderr, where the record has stdout for itself."""
        return sys.stderr if self.text == STDOUT else sys.stdout

    def write(self, record: Record) -> None:
        """Writes the record where it was asked for. Raises OSError."""
        if not self.text:
            return
        text = json.dumps(record, indent=2, allow_nan=False)
        if self.text == STDOUT:
            click.echo(text)
        else:
            path = writable("--json", self.text)
            with writing(path):
                path.write_text(text + "\n", encoding="utf-8")
