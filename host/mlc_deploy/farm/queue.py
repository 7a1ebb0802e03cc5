"""The process of a farm's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from ..errors import FarmError
from .closed import Queue
from .keys import SCHEDULER, keys_of


async def serve(address: str, tell: Callable[[str], None]) -> None:
    """Runs a scheduler until it is cancelled. Raises FarmError."""
    url = urlsplit(address)
    keys = keys_of(address, SCHEDULER)
    host = f"{url.scheme}://{url.netloc.rpartition(':')[0]}"
    try:
        async with Queue(keys, host=host, port=url.port) as queue:
            tell(f"the scheduler listens at {queue.address}")
            await queue.finished()
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise FarmError(
            f"the scheduler cannot listen: {error}", where=address, mend="another port or address"
        ) from None
