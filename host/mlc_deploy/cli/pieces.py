"""What `generate` and `transcribe` share: text that comes in pieces, what it cost, and options that
a compiled model takes no more."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlc_targets import Target

from .json_file import JsonFile
from .options import Misuse
from .tables import console_for, labelled


def print_pieces(pieces: Iterable[str | int], to_json: JsonFile) -> None:
    """The pieces, as they come: text, or the numbers of tokens."""
    for number, piece in enumerate(pieces):
        text = piece if isinstance(piece, str) else f"{', ' if number else ''}{piece}"
        to_json.beside.write(text)
        to_json.beside.flush()
    to_json.beside.write("\n")


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """What it cost, on stderr: stdout has the text alone."""
    console = console_for(sys.stderr)
    console.print()
    for label, text in facts:
        console.print(labelled(label, text), soft_wrap=True)


def refuse_compiled(file: Path, target: Target, options: Mapping[str, object], source: str) -> None:
    """Raises Misuse for an option of the compiler, with the saved model of a file. source: what
    such a model is compiled from."""
    for option, value in options.items():
        if value:
            raise Misuse(
                f"the model is compiled already, for {target.short_name}",
                where=f"{file} {option}",
                mend=f"without {option}, or the {source} that it was compiled from",
            )
