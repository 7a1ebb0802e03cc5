"""relay.py HOST PORT: joins standard input and output with a port, as nc does."""

from __future__ import annotations

import os
import socket
import sys
import threading


def main() -> None:
    link = socket.create_connection((sys.argv[1], int(sys.argv[2])))

    def outward() -> None:
        while data := os.read(0, 1 << 16):
            link.sendall(data)
        link.shutdown(socket.SHUT_WR)

    threading.Thread(target=outward, daemon=True).start()
    while data := link.recv(1 << 16):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
