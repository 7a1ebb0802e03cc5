"""Devices and arrays: `tvm.cpu(0)`, `tvm.nd.array(a, dev)`.

A device is a session with a board; the CPU of this machine is the board local://.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray as Array

from ..board.connect import connect
from ..errors import InputError
from . import absent

if TYPE_CHECKING:
    from mlc_rpc import Session
    from mlc_rpc.tensor import RemoteTensor


@cache
def local_session() -> Session:
    """The session with this machine. It ends with the process."""
    return connect("local://")


@dataclass(frozen=True)
class Device:
    """A board. None: this machine."""

    board: Session | None = None
    device_type: int = 1
    device_id: int = 0

    @property
    def session(self) -> Session:
        return self.board or local_session()

    @property
    def exist(self) -> bool:
        return True

    def sync(self) -> None:
        """A call returns when its kernel is done."""

    def __str__(self) -> str:
        return f"cpu({self.device_id})"


class NDArray:
    """A tensor on a device."""

    def __init__(self, tensor: RemoteTensor, device: Device) -> None:
        self.tensor = tensor
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    ctx = property(lambda self: self.device)

    def numpy(self) -> Array[Any]:
        return self.tensor.numpy()

    asnumpy = numpy  # as TVM called it before 0.8

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array[Any]:
        return np.asarray(self.numpy(), dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        whole = self.numpy()
        whole[index] = value
        self.tensor.write(whole)

    def copyfrom(self, source: Any) -> NDArray:
        self.tensor.write(np.asarray(source, self.dtype))
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        if isinstance(target, Device):
            return array(self.numpy(), target)
        return target.copyfrom(self.numpy())

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<tvm.nd.NDArray shape={self.shape}, {self.device}>\n{self.numpy()!r}"


def cpu(dev_id: int = 0) -> Device:
    """This machine."""
    return Device(None, 1, dev_id)


def device(dev_type: Any = "cpu", dev_id: int = 0) -> Device:
    """The CPU under any of its names: "cpu", "llvm", "c". Raises InputError for other devices."""
    kind = str(getattr(dev_type, "kind", dev_type)).split(" ", 1)[0]
    if kind not in ("cpu", "llvm", "c", "1"):
        raise InputError(f"there is no device '{dev_type}'", mend="tvm.cpu(), or remote.cpu()")
    return cpu(dev_id)


def array(arr: Any, device: Device | None = None, mem_scope: str | None = None) -> NDArray:
    """A copy of an array on a device. Python's floats become float32, integers int32."""
    device = device or cpu()
    known = hasattr(arr, "dtype")
    given = np.asarray(arr)
    if not known:
        given = given.astype({"f": "float32", "i": "int32"}.get(given.dtype.kind, given.dtype))
    return NDArray(device.session.tensor(np.ascontiguousarray(given)), device)


def empty(
    shape: int | Sequence[int],
    dtype: str = "float32",
    device: Device | None = None,
    mem_scope: str | None = None,
) -> NDArray:
    device = device or cpu()
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    return NDArray(device.session.tensor(np.zeros(wanted, dtype)), device)


def from_dlpack(source: Any) -> NDArray:
    return array(np.from_dlpack(source))


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.nd.{name}", ("array", "empty", "NDArray", "from_dlpack"))
