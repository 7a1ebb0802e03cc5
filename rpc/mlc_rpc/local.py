"""local://: the runtime as a child process on this machine."""

from __future__ import annotations

import os
import platform
import sys
import tempfile

from mlc_rpc.errors import Unreachable
from mlc_rpc.process import ProcessTransport, runtime_file
from mlc_rpc.transport import Runtime, Transport

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def local_machine() -> str:
    """The machine of this host's user space: a 32-bit Python on a 64-bit ARM kernel is "arm".

    Raises Unreachable where the runtime does not run.
    """
    name = platform.machine().lower()
    if sys.platform != "linux":
        raise Unreachable(
            f"local:// runs on Linux only, and this is {platform.system() or sys.platform}",
            board="local://",
            attempt="a board reached by ssh://[user@]host[:port]",
        )
    if name.startswith("armv7") or name.startswith("armv8"):
        return "arm"
    machine = _MACHINES.get(name)
    if machine == "aarch64" and sys.maxsize < 1 << 32:
        return "arm"
    if machine is None or sys.maxsize < 1 << 32:
        raise Unreachable(
            f"there is no runtime for this machine, {name}",
            board="local://",
            attempt="qemu://cortex-a53, or a board reached by ssh://[user@]host[:port]",
        )
    return machine


def open_local(runtime: Runtime) -> Transport:
    """Raises Unreachable."""
    machine = local_machine()
    folder = tempfile.TemporaryDirectory(prefix="mlc-local-")
    transport = ProcessTransport("local://", [runtime_file(runtime, machine, folder.name)], folder)
    transport.as_root = os.geteuid() == 0
    return transport
