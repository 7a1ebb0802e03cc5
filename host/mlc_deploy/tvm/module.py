"""Building and running: `tvm.build`, `tvm.lower`, `func(a, b)`, `func.export_library(path)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc_targets import Target

from ..codegen import Library
from ..driver import build as driver
from ..errors import InputError
from ..files.unfinished import write_whole
from ..ir import IRModule
from ..schedule import Schedule
from .arrays import Device, NDArray, cpu

if TYPE_CHECKING:
    from mlc_rpc import Timing
    from mlc_rpc.module import RemoteModule

MAIN = "main"


class Module:
    """Compiled kernels, and their handles on the devices where they ran."""

    def __init__(
        self, code: bytes | Library, entry_name: str = "", device: Device | None = None
    ) -> None:
        self._code = code
        self._loaded: dict[int, RemoteModule] = {}
        self._device = device  # where a module that was loaded from a file runs
        names = list(code.signatures) if isinstance(code, Library) else []
        self.entry_name = entry_name or (names[0] if names else "")
        self.imported_modules: list[Module] = []

    @property
    def type_key(self) -> str:
        return self._code.target.kind if isinstance(self._code, Library) else "library"

    def _on(self, device: Device) -> RemoteModule:
        session = device.session
        if id(session) not in self._loaded:
            self._loaded[id(session)] = session.load(self._code)
        return self._loaded[id(session)]

    def _names(self) -> list[str]:
        if isinstance(self._code, Library):
            return list(self._code.signatures)
        return list(self._on(self._device or cpu()).metadata.kernels)

    def _name(self, name: str) -> str:
        """TVM's name of the only function is main, whatever it is called."""
        known = self._names()
        if name in known:
            return name
        if len(known) == 1 and name in ("", MAIN, "default_function"):
            return known[0]
        raise InputError(f"the module has no function '{name}'", mend=", ".join(known))

    def get_function(self, name: str, query_imports: bool = False) -> Callable[..., None]:
        own = self._name(name)
        return lambda *args: self._run(own, args)

    def __getitem__(self, name: str) -> Callable[..., None]:
        return self.get_function(name)

    def __call__(self, *args: Any) -> None:
        self._run(self._name(self.entry_name), args)

    def _run(self, name: str, args: Sequence[Any]) -> None:
        device = self._device_of(args)
        self._on(device)[name](*_tensors(args))

    def _device_of(self, args: Sequence[Any]) -> Device:
        devices = [a.device for a in args if isinstance(a, NDArray)]
        return devices[0] if devices else self._device or cpu()

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        **options: Any,
    ) -> Callable[..., Evaluated]:
        """A function of the same arguments that times the kernel on its board."""
        name = self._name(func_name)
        options.pop("f_preproc", None)

        def evaluate(*args: Any) -> Evaluated:
            function = self._on(self._device_of(args))[name]
            timed = function.time_evaluator(
                number=number, repeat=repeat, min_repeat_ms=min_repeat_ms, **options
            )
            return Evaluated(timed(*_tensors(args)))

        return evaluate

    def get_source(self, fmt: str = "") -> str:
        return self._library().get_source(fmt)

    def inspect_source(self, fmt: str = "") -> str:
        return self._library().get_source(fmt)

    def export_library(self, file_name: str | Path, **_: Any) -> None:
        """Writes the object file, under any name. It holds all that a board needs to run it."""
        code = self._code if isinstance(self._code, bytes) else self._code.object_bytes
        write_whole(Path(file_name), code)

    def save(self, file_name: str | Path, fmt: str = "") -> None:
        to = Path(file_name)
        if to.suffix in (".s", ".ll", ".c"):
            self._library().save(to)
        else:
            self.export_library(to)

    def _library(self) -> Library:
        if isinstance(self._code, Library):
            return self._code
        raise InputError("a module that was loaded from a file has no source")


class Evaluated:
    """Times of a run, in seconds."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.results = timing.samples
        self.mean, self.median = timing.mean, timing.median
        self.min, self.max = min(timing.samples), max(timing.samples)
        self.std = float(np.std(timing.samples))

    def __repr__(self) -> str:
        return f"mean {self.mean * 1e3:.4f} ms, median {self.median * 1e3:.4f} ms"


def _tensors(args: Sequence[Any]) -> list[Any]:
    for number, arg in enumerate(args, 1):
        if not isinstance(arg, NDArray):
            what = f"argument {number} is {type(arg).__name__}, and a kernel takes arrays"
            raise InputError(what, mend="tvm.nd.array(a, dev)")
    return [a.tensor for a in args]


def load_module(path: str | Path, fmt: str = "", device: Device | None = None) -> Module:
    """The module that export_library wrote."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {file.name}", mend="func.export_library(path)")
    return Module(file.read_bytes(), device=device)


def build(
    inputs: Any,
    args: Sequence[Any] | None = None,
    target: Any = None,
    target_host: Any = None,
    runtime: Any = None,
    name: str | None = None,
    **_: Any,
) -> Module:
    """Compiles a schedule, a PrimFunc or a module. A target's host is the target itself."""
    if isinstance(inputs, Schedule):
        inputs = inputs.mod
    to = Target.current() if target is None else Target(target)
    program = inputs
    if args is None and isinstance(inputs, IRModule) and name is not None:
        name = name if len(inputs.functions) == 1 else None
    library = driver.build(program, args, target=to, name=name)
    return Module(library)


def lower(
    inputs: Any, args: Sequence[Any] | None = None, name: str = MAIN, simple_mode: bool = False
) -> Any:
    """The loops of a schedule, as a module of one function."""
    if isinstance(inputs, Schedule):
        inputs = inputs.mod
    made = driver.lower(inputs, args, simple_mode=True, name=name)
    return IRModule({made.name: made})
