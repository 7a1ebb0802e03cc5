"""tvm.contrib: folders for files."""

import tempfile
from pathlib import Path
from typing import Any

from . import absent

__all__ = ["utils"]


class TempDirectory:
    """A folder that is gone with the process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.temp_dir = self._folder.name

    @property
    def path(self) -> str:
        return self.temp_dir

    def relpath(self, name: str) -> str:
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        return sorted(p.name for p in Path(self.temp_dir).iterdir())

    def remove(self) -> None:
        self._folder.cleanup()


class utils:
    """`utils.tempdir().relpath("lib.tar")`."""

    @staticmethod
    def tempdir() -> TempDirectory:
        return TempDirectory()


util = utils  # as TVM called it before 0.8


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.contrib.{name}", __all__)
