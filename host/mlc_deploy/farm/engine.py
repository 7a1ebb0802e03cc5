"""Dask distributed, an optional package: importing it, and the addresses of schedulers."""

from __future__ import annotations

from collections.abc import Callable
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


def scheduler_address(text: str, warn: Callable[[str], None]) -> str:
    """The address of a scheduler, with its port. Raises FarmError for other text. Warns of plain
    text to another machine."""
    url = urlsplit(text)
    try:
        host, port = url.hostname, url.port or PORT
    except ValueError:  # a port that is no number
        host, port = None, PORT
    if url.scheme not in SCHEMES or not host or url.path.strip("/") or url.username:
        raise FarmError(
            f"'{text}' is no address of a scheduler",
            mend=f"tls://host:{PORT}, or tcp://host:{PORT}",
        )
    if url.scheme == "tcp" and not _is_here(host):
        warn(
            f"{text} is not encrypted, and runs the code of everyone who reaches it; "
            "tls:// with certificates is for other machines"
        )
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False
