"""--json FILE: the record of a job as a file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click

from ..files.unfinished import write_whole
from .options import Misuse, writable
from .tables import Record

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class JsonFile:
    """The value of --json: a file, "-" for stdout, or None. `others` are the command's other files.
    Raises Misuse for a file that cannot be written, or is one of the others."""

    text: str | None
    others: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if self.text and self.text != STDOUT:
            path = writable("--json", self.text)
            if path.resolve() in (Path(other).resolve() for other in self.others if other):
                raise Misuse(
                    "it would overwrite another file of this command",
                    where=f"--json {self.text}",
                    mend="another name",
                )

    @property
    def beside(self) -> TextIO:
        """The stream for tables: stderr if the record goes to stdout."""
        return sys.stderr if self.text == STDOUT else sys.stdout

    def write(self, record: Record) -> None:
        """Writes the record to the file or to stdout. Raises OSError."""
        if not self.text:
            return
        text = json.dumps(record, indent=2, allow_nan=False)
        if self.text == STDOUT:
            click.echo(text)
        else:
            write_whole(writable("--json", self.text), text + "\n")
