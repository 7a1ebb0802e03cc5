"""The tables that users may add to, as they were: tests that register something leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlc_deploy.ops import strategy
from mlc_targets import resolve


@contextmanager
def restored() -> Iterator[None]:
    implementations, tags = list(strategy._IMPLEMENTATIONS), dict(resolve._TAGS)
    try:
        yield
    finally:
        strategy._IMPLEMENTATIONS[:] = implementations
        resolve._TAGS.clear()
        resolve._TAGS.update(tags)
