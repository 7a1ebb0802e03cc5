"""The measurements of the user's boards, one file each beside boards.toml: calibrated/NAME.json.

predict/calibration.py describes the content.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlc_rpc.own import why_foreign

from ..errors import InputError
from ..files.fields import NoJson, parsed
from ..files.limits import CALIBRATED_BYTES
from ..files.outside import read_file
from ..files.unfinished import write_whole
from .enrolled import boards_file


def calibration_file(name: str) -> Path:
    return boards_file().parent / "calibrated" / f"{name}.json"


def read_calibration(name: str) -> Any:
    """The JSON of a board's file; None if there is no file. Raises InputError."""
    path = calibration_file(name)
    if why := why_foreign(path):
        raise damaged(name, f"figures of a board are not taken from this file: {why}")
    try:
        return parsed(read_file(path, CALIBRATED_BYTES.most)).value
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except NoJson as error:
        raise damaged(name, f"cannot be read: {error}") from error


def write_calibration(name: str, body: Any) -> Path:
    """Writes a board's file, whole or not at all. Raises OSError."""
    path = calibration_file(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(body) + "\n")
    return path


def forget_calibration(name: str) -> bool:
    """Removes a board's file; whether there was one. Raises OSError."""
    path = calibration_file(name)
    if not path.exists():
        return False
    path.unlink()
    return True


def damaged(name: str, what: str) -> InputError:
    """The error for a damaged file."""
    mend = f"mlc-deploy board calibrate {name}, which writes it again"
    return InputError(what, where=str(calibration_file(name)), mend=mend)
