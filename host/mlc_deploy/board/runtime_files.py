"""The files of this installation that go to a board, and QEMU's counting plugin.

Building the package fills `_runtime/` (`device_runtime/runtime_build.py`), so a wheel carries it
and users need no C compiler.
"""

from __future__ import annotations

import platform
from pathlib import Path

from mlc_deploy.errors import InstallError

FOLDER = Path(__file__).parents[1] / "_runtime"
MACHINES = ("arm", "aarch64", "x86_64")
_HOSTS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def runtime_file(machine: str) -> Path:
    """The static server program for a board with this machine, one of MACHINES.

    Raises InstallError.
    """
    if machine not in MACHINES:
        raise InstallError(
            f"there is no device runtime for machine '{machine}'",
            mend=f"a board with one of: {', '.join(MACHINES)}",
        )
    return _existing(f"mlc-runtime-{machine}")


def executor_files() -> tuple[Path, Path]:
    """mlc_runtime.h and mlc_runtime.c, the executor for C programs that link a model.

    Raises InstallError.
    """
    return _existing("mlc_runtime.h"), _existing("mlc_runtime.c")


def counting_plugin() -> Path:
    """The plugin that counts instructions, for a QEMU on this host.

    Raises InstallError, also on hosts other than Linux: only there QEMU runs Linux programs.
    """
    system, machine = platform.system(), platform.machine()
    host = _HOSTS.get(machine.lower())
    if system != "Linux" or host is None:
        raise InstallError(
            f"instructions cannot be counted on this host ({system} on {machine})",
            mend="a Linux host, x86_64 or aarch64",
        )
    return _existing(f"libmlc-count-{host}.so")


def _existing(name: str) -> Path:
    path = FOLDER / name
    if not path.is_file():
        raise InstallError(
            f"this installation of mlc-deploy lacks the file '{name}'",
            where=str(FOLDER),
            mend="python -m pip install --force-reinstall mlc-deploy\n"
            "in a checkout: python device_runtime/runtime_build.py",
        )
    return path
