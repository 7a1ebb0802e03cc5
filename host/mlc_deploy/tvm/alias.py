"""Makes `import tvm` mean this package, and says what to write instead of absent modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import absent

HERE = __package__
ROOT = absent.ROOT


class _Same(Loader):
    """Loads `tvm.te` as the module mlc_deploy.tvm.te itself."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # its own, not that of the alias


class _Alias(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        module = importlib.import_module(f"{HERE}{fullname.removeprefix(ROOT)}")
        return ModuleSpec(fullname, _Same(module), is_package=hasattr(module, "__path__"))


class _Explained(MetaPathFinder):
    """The last finder: it knows why a module of TVM's is not here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{HERE}."):
            return None
        # "from tvm import te, tir" asks for each name; those that are not modules are left alone.
        name = f"{ROOT}{fullname.removeprefix(HERE)}"
        if absent.instead(name) is None:
            return None
        raise ImportError(absent.message(name), name=fullname)


def explain() -> None:
    """From now on, imports of absent modules say what to write instead."""
    if not any(isinstance(finder, _Explained) for finder in sys.meta_path):
        sys.meta_path.append(_Explained())


def install() -> None:
    """From now on, `import tvm` imports this package in this process."""
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias())
