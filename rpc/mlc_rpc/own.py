"""Folders that are the user's own: where they are, and whether other users may change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def absolute(variable: str) -> Path | None:
    """The folder that an environment variable names; None without it. A relative one is ignored,
    as the XDG base directory specification says: it would depend on the current folder."""
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else None


def why_foreign(path: str | Path, status: os.stat_result | None = None) -> str:
    """Why users other than this one and root may change it; "" if they may not, or it does not
    exist.

    Always "" on systems other than POSIX, where the user's folders are private.
    """
    if os.name != "posix":
        return ""
    try:
        status = status or os.stat(path)
    except OSError:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return "it is another user's"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    return ""
