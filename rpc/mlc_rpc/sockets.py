"""What the system knows of a socket's queue."""

from __future__ import annotations

import socket
import sys


def unsent_bytes(link: object) -> int | None:
    """Bytes that were written to a TCP socket and that the other end has not acknowledged; None
    where the system does not tell."""
    if not isinstance(link, socket.socket):
        return None
    try:
        if sys.platform == "linux":
            import fcntl  # here, for Windows has neither
            import termios

            answer = fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(answer, sys.byteorder)
        if sys.platform == "darwin":
            return link.getsockopt(socket.SOL_SOCKET, 0x1024)  # SO_NWRITE
    except OSError:
        pass
    return None
