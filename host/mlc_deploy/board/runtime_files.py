"""Where this installation keeps the programs that go to a board, and QEMU's counting plugin.

`_runtime/` is filled when the package is built (`device_runtime/runtime_build.py`), so a wheel
carries it and no user needs a C compiler.
"""

from __future__ import annotations

import platform
from pathlib import Path

from mlc_deploy.errors import InstallError

FOLDER = Path(__file__).parents[1] / "_runtime"
MACHINES = ("arm", "aarch64", "x86_64")
_HOSTS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def runtime_file(machine: str) -> Path:
    """The static program that serves on a board with this machine, one of MACHINES.

    Raises InstallError.
    """
    if machine not in MACHINES:
        raise InstallError(
            f"there is no device runtime for machine '{machine}'",
            mend=f"a board with one of: {', '.join(MACHINES)}",
        )
    return _existing(f"mlc-runtime-{machine}")


def executor_files() -> tuple[Path, Path]:
    """mlc_runtime.h and mlc_runtime.c, the executor for programs that a model is linked into.

    Raises InstallError.
    """
    return _existing("mlc_runtime.h"), _existing("mlc_runtime.c")


def counting_plugin() -> Path:
    """The plugin that counts instructions, for a QEMU that runs on this host.

    Raises InstallError, where there is none too (QEMU runs programs of Linux on Linux alone).
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
