"""The sockets on which the processes of a tree listen, as the system tells them."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

Address = IPv4Address | IPv6Address
LISTENS = "0A"  # TCP_LISTEN, in include/net/tcp_states.h
UDP_UNCONNECTED = "07"  # TCP_CLOSE: a UDP socket that has no peer takes anyone's datagrams


def tree(root: int) -> set[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(root: int) -> set[tuple[Address, int]]:
    """Where the processes of a tree listen: addresses and ports, of TCP and UDP."""
    found = set()
    for pid in tree(root):
        inodes = _sockets(pid)
        for table in ("tcp", "tcp6", "udp", "udp6"):
            state = LISTENS if table.startswith("tcp") else UDP_UNCONNECTED
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == state and fields[9] in inodes:
                        found.add(_place(fields[1]))
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if match := re.fullmatch(
                    r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")
                ):
                    found.add(match[1])
    return found


def _place(text: str) -> tuple[Address, int]:
    """What "0100007F:1F90" says: words of 32 bits in this machine's order, then the port."""
    address, _, port = text.partition(":")
    words = [int(address[n : n + 8], 16) for n in range(0, len(address), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return ip_address(packed), int(port, 16)


def is_local(address: Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def own_address() -> str | None:
    """An address of this machine that others reach; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # TEST-NET-2; connecting UDP sends nothing
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if ip_address(found).is_loopback else found
