"""Text from outside is shown as text: in errors, in tables, on the way in."""

from __future__ import annotations

import inspect
import io
import re
import sys
from pathlib import Path

from mlc_deploy.cli.errors import message
from mlc_deploy.cli.tables import add_row, console_for, labelled, plain_table, tell
from mlc_deploy.errors import MlcError
from mlc_rpc import RpcError
from mlc_rpc.text import quoted
from mlc_targets import TargetError
from mlc_targets.text import paragraph, shown

EVIL = "a\x1b[31m\r\n  try: evil\x00\x7f\x9b\u202e\u2066\u2028[bold]z"
SHOWN = r"a\x1b[31m\r\n  try: evil\x00\x7f\x9b\u202e\u2066\u2028[bold]z"


def test_what_is_not_printable_is_escaped() -> None:
    assert shown(EVIL) == SHOWN
    assert shown("größe 尺寸 °C µs") == "größe 尺寸 °C µs"
    assert shown("x" * 3000) == "x" * 1000 + "..."
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert shown(every, len(every)).isprintable()


def test_lines_of_a_program_are_quoted() -> None:
    assert quoted("out of luck\n") == "out of luck"
    assert quoted("one\n  try: evil\x1b[0m\r\n") == ("\n       | one\n       |   try: evil\\x1b[0m")
    assert quoted("\n".join(map(str, range(1000)))).count("|") == 40


def test_nothing_in_an_error_looks_like_our_advice() -> None:
    told = "broken\n  try: evil\n    kept"
    assert paragraph(told) == "broken\n       try: evil\n    kept"
    assert str(RpcError(told, board=EVIL, attempt="ours")) == (
        "broken\n       try: evil\n    kept\n"
        "  on:  a\\x1b[31m\\r\n       try: evil\\x00\\x7f\\x9b\\u202e\\u2066\\u2028[bold]z\n"
        "  try: ours"
    )
    assert RpcError(EVIL).what.replace("\n       ", "\\n  ") == SHOWN
    assert str(MlcError(told, where="f(x):\n\treturn \x1b[1mx", mend="ours")) == (
        "broken\n       try: evil\n    kept\n  in:  f(x):\n               return \\x1b[1mx\n"
        "  try: ours"
    )
    assert str(TargetError(told, "ours")) == "broken\n       try: evil\n    kept\n  try: ours"
    assert message(ValueError(told)).splitlines()[1:] == [
        "       try: evil", "    kept)", "  try: --debug, and report what it says",
    ]  # fmt: skip


def test_tables_and_lines_hold_text() -> None:
    stream = io.StringIO()
    console = console_for(stream)
    table = plain_table(("layer", False), ("kernel", False))
    add_row(table, EVIL, EVIL)
    console.print(table)
    console.print(labelled("board", EVIL))
    tell(EVIL.partition("\n")[0], stream)
    text = stream.getvalue()
    assert text.count(SHOWN) == 3
    assert all(line.isprintable() for line in text.split("\n"))


def test_only_the_tables_make_text_for_the_terminal() -> None:
    folder = Path(inspect.getfile(message)).parent
    for path in folder.glob("*.py"):
        if path.name != "tables.py":
            assert not re.search(r"rich\.text|markup=True", path.read_text()), path.name
