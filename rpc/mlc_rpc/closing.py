"""What holds something on a board or of a farm, and gives it back at the end of a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """`with` closes it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Gives back what it holds. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
