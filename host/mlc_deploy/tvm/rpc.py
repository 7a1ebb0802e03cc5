"""tvm.rpc: sessions with boards."""

from __future__ import annotations

from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..board.connect import connect as _connect
from ..errors import InputError
from . import absent
from .arrays import Device, local_session
from .module import Module, load_module

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["LocalSession", "RPCSession", "connect"]


class RPCSession:
    """A session with a board, and the files that were uploaded for it.

    Files stay on this machine: a board gets a module, once for its content, when it runs."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._folder = TemporaryDirectory()

    def cpu(self, dev_id: int = 0) -> Device:
        return Device(self.session, 1, dev_id)

    def device(self, dev_type: str = "cpu", dev_id: int = 0) -> Device:
        if dev_type not in ("cpu", "llvm", "c"):
            raise InputError(f"the board has no device '{dev_type}'", mend="remote.cpu()")
        return self.cpu(dev_id)

    def upload(self, data: str | Path | bytes, target: str | None = None) -> bytes:
        name = target or (data if isinstance(data, (str, Path)) else "")
        if not name:
            raise InputError("bytes are uploaded under a name", mend='remote.upload(data, "lib.o")')
        content = data if isinstance(data, bytes) else Path(data).read_bytes()
        self._file(str(name)).write_bytes(content)
        return content

    def download(self, path: str) -> bytes:
        return self._file(path).read_bytes()

    def remove(self, path: str) -> None:
        self._file(path).unlink(missing_ok=True)

    def load_module(self, path: str) -> Module:
        return load_module(self._file(path), device=self.cpu())

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / PurePath(name).name


def LocalSession() -> RPCSession:
    """A session with this machine."""
    return RPCSession(local_session())


def connect(url: str, port: int | None = None, key: str = "", session_timeout: int = 0) -> Any:
    """A session with a board by its name or URL. There is no server to start on a board, and so no
    port: ssh reaches it, or the farm does."""
    if port is not None and "://" not in url:
        url = f"ssh://{url}"
    return RPCSession(_connect(url))


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.rpc.{name}", __all__)
