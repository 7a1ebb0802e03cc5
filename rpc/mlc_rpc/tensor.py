"""A tensor that lives on the board."""

from __future__ import annotations

import math
import mmap
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlc_rpc.closing import Closing
from mlc_rpc.link import CHUNK_SECONDS, Link, Request

MEMORY_FILE = "/memfd:"  # begins the link target of a memory file in /proc

# Types that numpy lacks travel as a numpy type of the same size.
_CARRIERS = {"bfloat16": "uint16"}


def carrier(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds a board type's bits; little-endian, as all boards are."""
    return np.dtype(_CARRIERS.get(dtype, dtype)).newbyteorder("<")


def dtype_name(dtype: DTypeLike) -> str:
    """The board's name of a numpy type: "float32", "int8", "bool"."""
    return np.dtype(dtype).name


class Handles:
    """The board's ids of one link's tensors or modules: those in use, and those `dropped`, which
    nobody here refers to."""

    def __init__(self, link: Link, noun: str) -> None:
        self._link, self._noun = link, noun
        self._used: set[int] = set()
        self.dropped: deque[int] = deque()

    def add(self, handle: int, method: str) -> int:
        """Registers a handle that answered `method`. Raises ProtocolError if it is in use."""
        if handle in self._used:
            raise self._link.broken(f"{self._noun} {handle} is another one already", method)
        self._used.add(handle)
        return handle

    def free(self, handle: int, timeout: float = CHUNK_SECONDS) -> None:
        self._used.discard(handle)
        self._link.call(f"{self._noun}.free", handle, timeout=timeout)

    def free_dropped(self, timeout: float) -> None:
        while self.dropped:
            self.free(self.dropped.popleft(), timeout)


class RemoteTensor(Closing):
    """A tensor on the board; `numpy` reads and `write` writes it.

    `close` frees it; otherwise it is freed some time after the last reference is gone, through
    `handles.dropped`. handles is None if something else on the board owns the tensor.
    """

    def __init__(
        self,
        link: Link,
        handles: Handles | None,
        handle: int,
        shape: Sequence[int],
        dtype: str,
    ) -> None:
        self.link = link
        self._handles = handles
        self.handle = handle
        self.shape = tuple(shape)
        self.dtype = dtype
        self._carrier = carrier(dtype)
        self.nbytes = math.prod(self.shape) * self._carrier.itemsize
        self._open = handles is not None
        self._mapping: NDArray[np.uint8] | None = None
        self._elements: NDArray[Any] | None = None  # of the mapping, in this shape and dtype
        self._may_map = link.transport.process is not None

    def __repr__(self) -> str:
        return f"<RemoteTensor {self.dtype}{list(self.shape)} on {self.link.board}>"

    def write(self, array: NDArray[Any]) -> None:
        """Sends the array, which must have this tensor's shape and dtype (ValueError otherwise)."""
        array = np.asarray(array)
        self._require(array)
        flat = np.ascontiguousarray(array, dtype=self._carrier).reshape(-1)
        self.write_bytes(0, flat.view(np.uint8))

    def numpy(self, shape: Sequence[int] | None = None) -> NDArray[Any]:
        """The content as an array; or its first elements, in a `shape` of no more elements."""
        shape = self.shape if shape is None else shape
        own = self._carrier
        return self.read_bytes(0, math.prod(shape) * own.itemsize).view(own).reshape(shape)

    def put(self, array: NDArray[Any]) -> None:
        """As `write`, for repeated writes: copies into the tensor's memory if it can be mapped."""
        array = np.asarray(array)
        if self._may_map:
            self.mapped()
        elements = self._elements
        if elements is None:
            self.write(array)
            return
        self._require(array)
        elements[...] = array

    def put_first(self, array: NDArray[Any]) -> None:
        """As `put`, for an array of another shape and no more elements: writes the first ones."""
        array = np.asarray(array)
        if array.shape == self.shape:
            self.put(array)
            return
        if array.dtype != self._carrier or array.size > math.prod(self.shape):
            self._require(array)
        if self._may_map:
            self.mapped()
        elements = self._elements
        if elements is None:
            self.write_bytes(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        else:
            elements.reshape(-1)[: array.size] = array.reshape(-1)

    def place(self, shape: Sequence[int]) -> NDArray[Any] | None:
        """A view of the first elements, in this shape, in the tensor's own memory. None unless
        `put` has mapped it."""
        if self._elements is None:
            return None
        return self._elements.reshape(-1)[: math.prod(shape)].reshape(shape)

    def number(self) -> int | float | bool:
        """The only element."""
        if self._may_map:
            self.mapped()
        elements = self._elements
        found: int | float | bool = (self.numpy() if elements is None else elements).item()
        return found

    def take(self, shape: Sequence[int] | None = None) -> NDArray[Any]:
        """As `numpy`, for repeated reads: copies the tensor's memory if it can be mapped."""
        if self._may_map:
            self.mapped()
        elements = self._elements
        if elements is None:
            return self.numpy(shape)
        if shape is None or tuple(shape) == self.shape:
            return elements.copy()
        return elements.reshape(-1)[: math.prod(shape)].reshape(shape).copy()

    def _require(self, array: NDArray[Any]) -> None:
        expected = self._carrier
        if array.shape != self.shape or array.dtype != expected:
            raise ValueError(
                f"tensor is {self.dtype}{list(self.shape)}, "
                f"the array {array.dtype.name}{list(array.shape)}\n"
                "  try: array.astype(...) or array.reshape(...)"
            )

    def read_bytes(self, offset: int, size: int) -> NDArray[np.uint8]:
        """`size` bytes of the content from `offset`."""
        flat = np.empty(size, np.uint8)
        data = flat.data
        requests = (
            Request(step, (self.handle, offset + at, step), into=data[at : at + step])
            for at, step in self.link.chunks(size)
        )
        for _ in self.link.stream("tensor.read", requests, CHUNK_SECONDS, size):
            pass
        return flat

    def write_bytes(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes of the content from `offset`."""
        view = data.data
        requests = (
            Request(step, (self.handle, offset + at), view[at : at + step])
            for at, step in self.link.chunks(len(data))
        )
        for _ in self.link.stream("tensor.write", requests, CHUNK_SECONDS, len(data)):
            pass

    def mapped(self) -> NDArray[np.uint8] | None:
        """The tensor's own memory if the board is a process of this machine; else None."""
        if self._may_map:
            self._may_map = False
            self._mapping = _map(self.link, self.handle, self.nbytes)
            if self._mapping is not None:
                self._elements = self._mapping.view(self._carrier).reshape(self.shape)
        return self._mapping

    def fill(self, kind: Literal["zero", "random"], seed: int = 1) -> None:
        """Lets the board fill the tensor; nothing is sent."""
        self.link.call("tensor.fill", self.handle, kind, seed, timeout=CHUNK_SECONDS)

    def close(self) -> None:
        """Frees the tensor. Safe to call again."""
        if self._open and self._handles:
            self._open = False
            self._handles.free(self.handle)

    def __del__(self) -> None:
        # This may run at any moment on any thread, even one that is sending: only note the handle.
        if getattr(self, "_open", False) and self._handles:
            self._handles.dropped.append(self.handle)


def _map(link: Link, handle: int, size: int) -> NDArray[np.uint8] | None:
    """Maps a tensor's memory file; None if the system does not let us.

    The board could name any file. So it must be a memory file of the program that was started here,
    and of the tensor's size.
    """
    if size == 0:
        return np.empty(0, np.uint8)
    process, descriptor = link.call("tensor.descriptor", handle, timeout=CHUNK_SECONDS)
    path = f"/proc/{process}/fd/{descriptor}"
    if process != link.transport.process:
        raise link.broken(f"{path} is not a file of the board's program", "tensor.descriptor")
    try:
        target = os.readlink(path)
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if not target.startswith(MEMORY_FILE) or os.fstat(file).st_size < size:
            raise link.broken(f"{path} is not the tensor's memory", "tensor.descriptor")
        return np.frombuffer(mmap.mmap(file, size), np.uint8)
    finally:
        os.close(file)
