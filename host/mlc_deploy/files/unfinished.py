"""Files that appear whole under their names, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import writing

_unfinished: set[Path] = set()  # files that this process is writing


@contextmanager
def replacing(path: str | Path, mode: int | None = None) -> Iterator[Path]:
    """The name of a file to write, which replaces `path` at the end. An exception removes this file
    and leaves `path` as it was. `mode` is the mode of the file (default: that of the old file).

    A device, a pipe, and a file in a read-only folder are written directly. Raises OSError, which
    names `path`.
    """
    to = Path(path).resolve()  # the target of a link is replaced, not the link
    if (to.exists() and not to.is_file()) or not os.access(to.parent, os.W_OK):
        with writing(Path(path)):
            yield to
        return
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    _unfinished.add(part)
    try:
        yield part
        if mode is not None:
            part.chmod(mode)
        elif to.exists():
            shutil.copymode(to, part)
        part.replace(to)
    except OSError as error:
        if error.filename in (None, part, str(part)):
            error.filename, error.filename2 = str(path), None  # the one that the user knows
        raise
    finally:
        part.unlink(missing_ok=True)
        _unfinished.discard(part)


def write_whole(
    path: str | Path, content: bytes | memoryview | str, mode: int | None = None
) -> None:
    """Writes a file, text as UTF-8. Raises OSError."""
    with replacing(path, mode) as part:
        part.write_bytes(_bytes(content))


def remove_unfinished() -> None:
    """Removes unfinished files, for a process that ends now, whatever its threads are doing."""
    for part in tuple(_unfinished):
        with suppress(OSError):
            part.unlink()


def _bytes(content: bytes | memoryview | str) -> bytes | memoryview:
    """Text as UTF-8; a file's name in it as the bytes that it has."""
    return content.encode(errors="surrogateescape") if isinstance(content, str) else content
