"""Whether a file or folder of the user's can be relied on: who else may change it?"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_foreign(path: str | Path, status: os.stat_result | None = None) -> str:
    """Why others than the user and root may change it; "" where they may not, or nothing is there.

    Systems other than POSIX have other means, and the user's folders are the user's there.
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
