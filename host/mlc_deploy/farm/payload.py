"""What calls and results consist of: data of our classes, as pickles that hold nothing else.

A pickle names classes and functions, and a plain unpickler calls them all. This one knows frozen
dataclasses, nodes of programs, enumerations and errors of our packages, arrays of numpy, and the
few functions by which our classes are put together. None acts on anything but its arguments.
"""

from __future__ import annotations

import builtins
import io
import pickle
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from ..ir.nodes import Node

OURS = ("mlc_deploy", "mlc_rpc", "mlc_targets")
ACTING = ("mlc_deploy.cli", "mlc_deploy.farm.member")  # importing them is for those who act
FUNCTIONS = {
    ("functools", "partial"),
    ("mlc_deploy.driver.compile", "_lowered"),
    ("mlc_deploy.errors", "_remade"),
    ("mlc_deploy.ir.flat", "made"),
    ("mlc_deploy.ir.nodes", "_frozen"),
}
PLAIN = {
    *(("builtins", n) for n in ("bytearray", "complex", "frozenset", "range", "set", "slice")),
    *(("collections", name) for name in ("Counter", "OrderedDict", "deque")),
    ("concurrent.futures._base", "CancelledError"),
    *(("numpy", name) for name in ("dtype", "ndarray")),
    *(
        (f"numpy.{core}.{module}", name)
        for core in ("_core", "core")
        for module, name in (
            ("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"),
        )
    ),
}  # fmt: skip


class NotData(Exception):
    """Bytes that are not pickle of data."""


def packed(data: Any) -> bytes:
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(data)
    return content.getvalue()


def unpacked(content: bytes) -> Any:
    """Raises NotData."""
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except NotData:
        raise
    except Exception as error:  # whatever damaged bytes bring about
        raise NotData(f"{type(error).__name__}: {error}") from None


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Errors go as they say themselves: Dask registers another way, with tracebacks, for all
        errors of the process."""
        return obj.__reduce__() if isinstance(obj, BaseException) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in FUNCTIONS | PLAIN:
            return super().find_class(module, name)
        if module == "builtins":
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, Exception):
                return found
        elif module.partition(".")[0] in OURS and not module.startswith(ACTING) and "." not in name:
            found = getattr(import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module and is_data(found):
                return found
        raise NotData(f"{module}.{name} is not data")


def is_data(cls: type) -> bool:
    """Whether making an object of the class does no more than that."""
    if issubclass(cls, (Enum, Exception, Node, int, str, tuple)):
        return True
    parameters = getattr(cls, "__dataclass_params__", None)
    return is_dataclass(cls) and parameters is not None and bool(parameters.frozen)
