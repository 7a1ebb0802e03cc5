"""boards.toml: the user's boards by name.

[kitchen]
url = "ssh://pi@raspberrypi.local"
target = "raspberry-pi/4b-aarch64"      # optional: replaces the target that the board reports
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mlc_rpc.own import absolute, why_foreign

from ..errors import InputError
from ..files.limits import BOARDS_BYTES, BOARDS_PARTS
from ..files.outside import read_file
from ..files.unfinished import write_whole


@dataclass(frozen=True, slots=True)
class Enrolled:
    url: str
    target: str | None = None


def boards_file() -> Path:
    return (absolute("XDG_CONFIG_HOME") or Path.home() / ".config") / "mlc-deploy" / "boards.toml"


def enrolled_boards() -> dict[str, Enrolled]:
    """The boards by name; none without a file. Raises InputError for a file that cannot be used."""
    path = boards_file()
    if why := why_foreign(path):
        raise InputError(
            f"boards are not taken from this file: {why}",
            where=str(path),
            mend=f"look into it, then: chown $USER {path}; chmod go-w {path}",
        )
    try:
        return _entries(read_file(path, BOARDS_BYTES.most).decode(), path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (RecursionError, MemoryError):  # deep nesting may raise either
        what = "cannot be read: it is nested too deeply"
        raise InputError(what, where=str(path), mend="an editor") from None
    except ValueError as error:  # of the text, its numbers or its encoding
        raise InputError(f"cannot be read: {error}", where=str(path), mend="an editor") from error


def _entries(text: str, path: Path) -> dict[str, Enrolled]:
    # tomllib's time grows with the square of a key's parts.
    if any(line.count(".") > BOARDS_PARTS.most for line in text.splitlines()):
        raise RecursionError
    return {name: _entry(name, entry, path) for name, entry in tomllib.loads(text).items()}


def enroll(name: str, board: Enrolled) -> Path:
    """Adds a board to the file and returns its path. Raises InputError if the name is taken."""
    path = boards_file()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise InputError(f"'{name}' is not a name for a board", mend="letters, digits, . _ and -")
    known = enrolled_boards()
    if name in known:
        if known[name] == board:
            return path
        raise InputError(
            f"'{name}' is {known[name].url} already", where=str(path), mend="another name"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    quoted = json.dumps(name) if "." in name else name
    entry = f"[{quoted}]\nurl = {json.dumps(board.url)}\n"
    if board.target:
        entry += f"target = {json.dumps(board.target)}\n"
    text = f"{old.rstrip()}\n\n{entry}" if old.strip() else entry
    write_whole(path, text)
    return path


def remove(name: str) -> Enrolled:
    """Removes a board's lines from the file and returns its entry. Raises InputError if there is no
    such board, or its lines cannot be told from others'."""
    path, known = boards_file(), enrolled_boards()
    if name not in known:
        near = ", ".join(get_close_matches(name, known)) or "mlc-deploy board list"
        raise InputError(f"no board is called '{name}'", where=str(path), mend=near)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    headers = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    begin = next((n for n in headers if _named(lines[n]) == name), len(lines))
    after = next((n for n in headers if n > begin), len(lines))
    while after < len(lines) and lines[after - 1].lstrip()[:1] in ("#", ""):
        after -= 1  # comments above the next board belong to that board
    left = "".join(lines[:begin] + lines[after:])
    gone = known.pop(name)
    if _entries(left, path) != known:
        raise InputError(
            f"the lines of '{name}' cannot be told from others'", where=str(path), mend="an editor"
        )
    write_whole(path, left)
    return gone


def _named(header: str) -> str | None:
    """The name of the table that a line of TOML begins."""
    try:
        return next(iter(tomllib.loads(header)), None)
    except tomllib.TOMLDecodeError:
        return None


def _entry(name: str, entry: object, path: Path) -> Enrolled:
    match entry:
        case {"url": str(url), **rest} if set(rest) <= {"target"}:
            target = rest.get("target")
            if target is None or isinstance(target, str):
                return Enrolled(url, target)
    raise InputError(
        f"board '{name}' is invalid",
        where=str(path),
        mend=f'[{name}]\n       url = "ssh://[user@]host[:port]"',
    )
