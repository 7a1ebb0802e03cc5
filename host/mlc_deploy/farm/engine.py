"""Dask distributed, an optional package: importing it, and the addresses of schedulers."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from ..errors import FarmError

SCHEMES = ("tcp", "tls")
PORT = 8786  # of a scheduler that is started without --port


def require_distributed() -> Any:
    """The package. Raises FarmError that names the extra if it is not installed."""
    try:
        import distributed
    except ImportError:
        raise FarmError(
            "a farm needs the package distributed, which is not installed",
            mend="pip install 'mlc-deploy[farm]'",
        ) from None
    return distributed


def scheduler_address(text: str) -> str:
    """The address of a scheduler, with its port. Raises FarmError for other text, and for plain
    text to another machine."""
    url = urlsplit(text)
    try:
        host, port = url.hostname, url.port or PORT
    except ValueError:  # a port that is not a number
        host, port = None, PORT
    if url.scheme not in SCHEMES or not host or url.path.strip("/") or url.username:
        raise FarmError(
            f"'{text}' is not an address of a scheduler",
            mend=f"tls://host:{PORT}, or tcp://host:{PORT}",
        )
    place = f"{f'[{host}]' if ':' in host else host}:{port}"
    if url.scheme == "tcp" and not is_loopback(host):
        raise FarmError(
            "a farm without certificates is for this machine alone: tcp:// is not encrypted, and "
            "takes work of everyone who reaches it",
            where=text,
            mend=f"mlc-deploy farm keys farm-keys, then tls://{place}",
        )
    return f"{url.scheme}://{place}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def own_host(scheduler: str) -> str:
    """The one address of this machine on which a member listens: that from which it reaches the
    scheduler. Raises OSError if none does."""
    url = urlsplit(scheduler)
    host = url.hostname or ""
    if is_loopback(host):
        return "::1" if ":" in host else "127.0.0.1"
    kind, _, _, _, peer = socket.getaddrinfo(host, url.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:  # connecting UDP sends nothing
        probe.connect(peer)
        return str(probe.getsockname()[0])
