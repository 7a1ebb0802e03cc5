"""Base class of objects that hold something on a board or in a farm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """The end of a `with` calls `close`."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Releases what this object holds. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
