"""Connects to boards by mlc_rpc, with the runtimes and the plugin that ship with this package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_targets import Target
from mlc_targets.caches import Cache
from mlc_targets.cpus import CPUS
from mlc_targets.features import REQUIRED, closure, is_unused, roots
from mlc_targets.resolve import SHORT_NAMES

from ..errors import InstallError
from .enrolled import enrolled_boards
from .runtime_files import counting_plugin, runtime_file

if TYPE_CHECKING:
    from mlc_rpc import Session
    from mlc_rpc.session import Device


def connect(
    board: str,
    *,
    machine: str | None = None,
    timeout: float = 30.0,
    caches: Sequence[Cache] = (),
) -> Session:
    """A session with a board: "local://", "qemu://cortex-a72", "ssh://pi@raspberrypi.local", or the
    name of an enrolled board.

    machine: "aarch64" or "arm", for a board that could be either. caches: those that an emulated
    board simulates. Raises mlc_rpc.Unreachable, with the way out, and InputError if boards.toml
    cannot be used.
    """
    import mlc_rpc

    known = {} if "://" in board else enrolled_boards()
    url = known[board].url if board in known else board
    return mlc_rpc.connect(
        url, runtime_file, machine=machine, plugin=_plugin(), caches=caches, timeout=timeout
    )


def target_of(device: Device) -> Target:
    """The target for a board, from its own description.

    Its CPU is the last known kind of core, since boards with two kinds list the small cores first;
    without a known kind, the target is a short name. Features are those the board reports: its
    Linux kernel may hide some.
    """
    machine = device.machine
    known = [cpu.model for cpu in device.cpus if cpu.model in CPUS[machine]]
    spec = {
        "kind": "llvm",
        "mtriple": SHORT_NAMES["armv7a" if machine == "arm" else machine]["mtriple"],
        "mcpu": known[-1] if known else "",
    }
    has, needs = device.features & REQUIRED[machine], set(Target(spec).required_features)
    hidden = needs - has
    gone = (name for name in hidden if not (closure(machine, name) - {name}) & hidden)
    added = roots(machine, {name for name in has - needs if not is_unused(name)})
    return Target(spec | {"mattr": [*(f"+{n}" for n in added), *(f"-{n}" for n in sorted(gone))]})


def _plugin() -> Path | None:
    try:
        return counting_plugin()
    except InstallError:  # then instructions are not counted, and the session says so
        return None
