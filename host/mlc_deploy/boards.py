"""Boards, reached by mlc_rpc with the runtimes and the plugin that ship with this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InstallError
from .runtime_files import counting_plugin, runtime_file

if TYPE_CHECKING:
    from mlc_rpc import Session


def connect(board: str, *, machine: str | None = None, timeout: float = 30.0) -> Session:
    """A session with a board: "local://", "qemu://cortex-a72", "ssh://pi@raspberrypi.local".

    machine says which one is wanted ("aarch64", "arm") where the board could be several. Raises
    mlc_rpc.Unreachable, naming what to do.
    """
    import mlc_rpc

    return mlc_rpc.connect(board, runtime_file, machine=machine, plugin=_plugin(), timeout=timeout)


def _plugin() -> Path | None:
    try:
        return counting_plugin()
    except InstallError:  # instructions are then not counted, and the session says so
        return None
