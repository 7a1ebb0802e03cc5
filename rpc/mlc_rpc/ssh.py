"""ssh://: the runtime on a board, spoken to through the stdin and stdout of an ssh channel.

Nothing needs to be installed on the board and no port is opened. The program is sent once, into a
cache under the hash of its content, and lives as long as the channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mlc_rpc.errors import Unreachable
from mlc_rpc.ssh_child import ChildShell
from mlc_rpc.ssh_client import OnlySsh, connect_client
from mlc_rpc.ssh_config import Host, resolve
from mlc_rpc.ssh_scripts import CHECK, CLEAN, PLACES, PROBE, START, STORE, script
from mlc_rpc.ssh_shell import Said, Shell
from mlc_rpc.text import quoted
from mlc_rpc.transport import Runtime, SshUrl, Transport

_ELF_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
_KERNEL_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7l": "arm", "armv8l": "arm"}


def open_ssh(url: SshUrl, runtime: Runtime, timeout: float) -> Transport:
    """Connects, sends the program for the board's user space unless it is there, and starts it.

    Raises Unreachable.
    """
    shell = open_shell(resolve(url), timeout)
    try:
        program = runtime(_machine(shell, timeout))
        content = program.read_bytes() if isinstance(program, Path) else program
        place = _send(shell, content, timeout)
        transport = shell.start(script(START, content, place), timeout)
        transport.as_root = shell.host.user == "root"
        return transport
    except BaseException:
        shell.close()
        raise


def open_shell(host: Host, timeout: float) -> Shell:
    """Connects by paramiko, or by the system's ssh if paramiko lacks the route or the algorithms.

    Raises Unreachable.
    """
    if host.only_ssh:
        return ChildShell(host, timeout)
    try:
        return connect_client(host, timeout)
    except OnlySsh as error:
        try:
            return ChildShell(host, timeout)
        except Unreachable as other:
            raise host.unreachable(
                f"{error.what}; and the system's ssh: {other.what}", other.attempt
            ) from error


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A cache directory that was removed, and its size."""

    path: str
    bytes: int


def clean_ssh(url: SshUrl, timeout: float) -> list[Cleaned]:
    """Removes everything that this user left on the board. Raises Unreachable."""
    shell = open_shell(resolve(url), timeout)
    clean = script(CLEAN)
    try:
        answer = shell.run(clean, timeout)
    finally:
        shell.close()
    if not clean.found("done", answer.out):
        raise shell.host.unreachable(f"its cache cannot be removed: {quoted(answer.complaint)}")
    found = clean.found(r"clean ([0-9]{1,15}) (.+)", answer.out)
    return [Cleaned(removed[2], int(removed[1]) * 1024) for removed in found]


def _machine(shell: Shell, timeout: float) -> str:
    """The machine of the board's user space: a 32-bit system on a 64-bit kernel is "arm"."""
    host, probe = shell.host, script(PROBE)
    answer = shell.run(probe, timeout)
    answers = probe.found(r"board (\S{1,64}) (\S{1,64})((?: [0-9]{1,3})*)", answer.out)
    if not answers:
        raise _no_shell(host, answer)
    found = answers[0]
    system, kernel, octets = found[1], found[2], [int(n) for n in found[3].split()]
    machine = _KERNEL_MACHINES.get(kernel, kernel)
    if octets[:4] == [0x7F, *b"ELF"] and len(octets) == 20:
        machine = _ELF_MACHINES.get(octets[18] + 256 * octets[19], machine)
    if system != "Linux":
        raise host.unreachable(f"it runs {system}, and the runtime needs Linux")
    if re.match(r"armv[2-6]", kernel):
        raise host.unreachable(f"its CPU is {kernel}, and the runtime needs ARMv7")
    if machine not in _KERNEL_MACHINES.values():
        known = ", ".join(sorted(set(_KERNEL_MACHINES.values())))
        raise host.unreachable(f"there is no runtime for its user space, {machine}; only {known}")
    return machine


def _no_shell(host: Host, answer: Said) -> Unreachable:
    said = "\n".join(filter(None, (answer.out[-300:].strip(), answer.complaint[-300:])))
    attempt = f"a login shell that runs what it is given: echo uname -m | {host.command} sh"
    if not said and answer.status == 0:
        return host.unreachable(
            f"its shell ran no command and said nothing: a start file of user {host.user} reads "
            "its stdin, or ends",
            "in that file (.bashrc, .profile, .cshrc), an end before it reads or asks, where the "
            "shell is not interactive: [ -t 0 ] || return",
        )
    return host.unreachable(
        f"its shell does not run a command (status {answer.status}): {quoted(said)}", attempt
    )


def _send(shell: Shell, content: bytes, timeout: float) -> int:
    """Stores the program in the board's cache; returns the index of its place (ssh_scripts)."""
    check = script(CHECK, content)
    answer = shell.run(check, timeout)
    if there := check.found(r"there (\d)", answer.out):
        return int(there[0][1])
    complaints = [] if check.found("absent", answer.out) else [answer.complaint]
    for place in range(PLACES):
        store = script(STORE, content, place)
        answer = shell.run(store, timeout, content)
        if there := store.found(r"there (\d)", answer.out):
            return int(there[0][1])
        complaints.append(answer.complaint)
    raise shell.host.unreachable(
        "the program can be stored nowhere there:\n       "
        + "\n       ".join(line for text in complaints for line in text.splitlines()),
        "a directory of the user's own with a few MB of room, where programs may be started, "
        "as XDG_CACHE_HOME",
    )
