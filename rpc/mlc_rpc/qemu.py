"""qemu://: the runtime under QEMU's user-mode emulation, as a stand-in for a board.

Our plugin counts executed instructions, if this QEMU takes plugins. A QEMU that scripts/build-qemu
made is preferred to the system's.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from mlc_rpc.counters import Counter, plugin_remedy
from mlc_rpc.errors import Unreachable
from mlc_rpc.own import absolute, why_foreign
from mlc_rpc.process import ProcessTransport, runtime_file
from mlc_rpc.transport import QemuUrl, Runtime, Transport, why_no_board
from mlc_targets.caches import Cache, caches_option

MACHINES = ("aarch64", "arm")
PROBE_SECONDS = 20


def open_qemu(
    url: QemuUrl,
    runtime: Runtime,
    machine: str | None = None,
    plugin: Path | None = None,
    caches: Sequence[Cache] = (),
) -> Transport:
    """`machine` decides for a CPU name that fits both machines ("max") or none; None: aarch64.

    `plugin` is the counting plugin built for this host, or None. It simulates `caches`: the core's
    first cache, then the candidates for the next one.
    Raises Unreachable when QEMU is missing or does not know the CPU.
    """
    board = f"qemu://{url.option}"
    machine = _machine_of(url.cpu, board, machine)
    qemu = find_qemu(machine, board)
    known = cpu_names(qemu)
    if url.cpu not in known:
        raise Unreachable(
            f"{Path(qemu).name} has no CPU '{url.cpu}'",
            board=board,
            attempt=f"one of {', '.join(_nearest(url.cpu, known))}",
        )
    folder = tempfile.TemporaryDirectory(prefix="mlc-qemu-")
    program = runtime_file(runtime, machine, folder.name)
    options: list[str] = []
    if plugin is None:
        reason = "no counting plugin was given"
    else:
        reason = refusal(qemu, plugin, program)
        if not reason:
            counts = Path(folder.name, "counts")
            simulated = f",caches={caches_option(caches)}" if caches else ""
            options = ["-plugin", f"{plugin},out={counts}{simulated}"]
    # As root: a worker that drops to user nobody could not write to the plugin's file.
    command = [qemu, "-cpu", url.option, *options, program, "--as-root"]
    transport = ProcessTransport(board, command, folder)
    transport.emulated = True
    transport.why_not_counting = reason
    if options:
        transport.counter = Counter(counts, caches)
    else:
        transport.warnings = (f"executed instructions are not counted: {reason}",)
    return transport


def find_qemu(machine: str, board: str = "qemu://") -> str:
    """Path of the emulator for a machine. Raises Unreachable when it is not installed."""
    if machine not in MACHINES:
        raise Unreachable(
            f"qemu:// emulates {' and '.join(MACHINES)}, not {machine}",
            board=board,
            attempt="local://" if machine == "x86_64" else f"one of {', '.join(MACHINES)}",
        )
    if path := _installed(machine):
        return path
    raise Unreachable(
        f"qemu-{machine} is not installed", board=board, attempt="apt install qemu-user"
    )


def built_folder() -> Path:
    """Where scripts/build-qemu installs emulators."""
    return (absolute("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlc-deploy" / "qemu"


def _installed(machine: str) -> str | None:
    built = built_folder() / f"qemu-{machine}"
    own = not (why_foreign(built.parent) or why_foreign(built))
    names = (*[str(built)] * own, f"qemu-{machine}", f"qemu-{machine}-static")
    return next(filter(None, map(shutil.which, names)), None)


@lru_cache
def cpu_names(qemu: str) -> tuple[str, ...]:
    """The CPUs that this QEMU emulates."""
    asked = subprocess.run(
        [qemu, "-cpu", "help"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
    )
    return tuple(line.split()[0] for line in asked.stdout.splitlines()[1:] if line.strip())


@lru_cache
def refusal(qemu: str, plugin: Path, program: str) -> str:
    """Why this QEMU does not take the plugin; "" when it does. Runs QEMU to see."""
    if not plugin.exists():
        return f"the counting plugin {plugin.name} is not built"
    tried = subprocess.run(
        [qemu, "-plugin", f"{plugin},out=/dev/null", program, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_SECONDS,
        check=False,
    )
    if tried.returncode == 0:
        return ""
    lines = [line for line in (tried.stderr or tried.stdout).splitlines() if line.strip()]
    why = lines[0] if lines else "it did not say why"
    return f"this QEMU takes no such plugin ({why}); try: {plugin_remedy()}"


def _machine_of(cpu: str, board: str, wanted: str | None = None) -> str:
    """The machine whose QEMU knows the CPU: `wanted` if possible, else the first of MACHINES.

    `wanted` is returned unchecked when its QEMU is not installed, or no QEMU knows the CPU.
    """
    if wanted and wanted not in MACHINES:
        return wanted
    installed = [m for m in MACHINES if _installed(m)]
    if wanted and wanted not in installed:
        return wanted
    for machine in sorted(installed, key=lambda m: m != wanted):
        if cpu in cpu_names(find_qemu(machine, board)):
            return machine
    if wanted or not installed:
        return wanted or MACHINES[0]
    names = {name: None for m in installed for name in cpu_names(find_qemu(m, board))}
    raise Unreachable(
        f"QEMU has no CPU '{cpu}'",
        board=board,
        attempt=f"one of {', '.join(_nearest(cpu, tuple(names)))}",
    )


def _nearest(name: str, known: tuple[str, ...]) -> list[str]:
    boards = [k for k in known if not why_no_board(k)]
    return sorted(boards, key=lambda k: -difflib.SequenceMatcher(None, name, k).ratio())[:12]
