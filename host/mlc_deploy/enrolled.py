"""boards.toml: the user's boards by name.

[kitchen]
url = "ssh://pi@raspberrypi.local"
target = "raspberry-pi/4b-aarch64"      # where it is to be another than the board says itself
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError


@dataclass(frozen=True, slots=True)
class Enrolled:
    url: str
    target: str | None = None


def boards_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "mlc-deploy" / "boards.toml"


def enrolled_boards() -> dict[str, Enrolled]:
    """Boards by name; none where there is no file. Raises InputError for a file not in order."""
    path = boards_file()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), mend="an editor") from error
    return {name: _entry(name, entry, path) for name, entry in table.items()}


def enroll(name: str, board: Enrolled) -> Path:
    """Adds a board to the file, which is returned. Raises InputError where the name is taken."""
    path = boards_file()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise InputError(f"'{name}' is no name for a board", mend="letters, digits, . _ and -")
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
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


def _entry(name: str, entry: object, path: Path) -> Enrolled:
    match entry:
        case {"url": str(url), **rest} if set(rest) <= {"target"}:
            target = rest.get("target")
            if target is None or isinstance(target, str):
                return Enrolled(url, target)
    raise InputError(
        f"board '{name}' is not in order",
        where=str(path),
        mend=f'[{name}]\n       url = "ssh://[user@]host[:port]"',
    )
