"""What calls consist of: data goes through, code does not; and seals that open for one alone."""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy
import mlc_rpc
import mlc_targets
from mlc_deploy.errors import FarmError
from mlc_deploy.farm.payload import ACTING, NotData, is_data, packed, unpacked
from mlc_deploy.farm.seal import Unsealable, calling, new_private, opened_call, public_of
from mlc_deploy.farm.tasks import BOARD_TASKS, BUILD_TASKS, HOST_TASKS, task_of
from mlc_deploy.farm.work import Call, Done
from mlc_deploy.tuned import Measured
from mlc_rpc import Refused
from mlc_targets import Target
from tests.tune.searches import matmul_task


@pytest.mark.parametrize(
    "data",
    [
        Call("measure", (1, "x", 2.0, None, (True, b"y"), {"z": [3]}), "ada@desk", 4.0),
        Done(Measured("ok", (1e-3,), 5, "emulated"), None, 1.0, 2.0, "tcp://127.0.0.1:1"),
        Target("aarch64"),
        {1, 2},
        frozenset({"a"}),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_goes_through(data: Any) -> None:
    assert unpacked(packed(data)) == data


@pytest.fixture
def with_tracebacks() -> None:
    """As Dask's servers leave a process in which one of them has sent an error."""
    tblib = pytest.importorskip("tblib.pickling_support")
    tblib.install(FarmError("x"), Refused("x", board="b"), ValueError("x"))


def test_errors_go_through_where_dask_has_registered_them(with_tracebacks: None) -> None:
    for error in (FarmError("what", where="w", mend="m"), ValueError(3)):
        assert str(unpacked(packed(error))) == str(error)
    assert unpacked(packed(Refused("no", board="b"))).what == "no"


def test_programs_arrays_and_errors_go_through() -> None:
    task = matmul_task()
    assert str(unpacked(packed(task.func))) == str(task.func)
    for array in (np.arange(6.0).reshape(2, 3), np.zeros(0, np.int8), np.float32(3)):
        np.testing.assert_array_equal(unpacked(packed(array)), array)
    for error in (FarmError("what", where="w", mend="m"), ValueError(3)):
        assert str(unpacked(packed(error))) == str(error)
    assert unpacked(packed(Refused("no", board="b"))).what == "no"


class Calls:
    """Pickled, it calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


@pytest.mark.parametrize(
    "function",
    [os.system, eval, exec, getattr, __import__, open, print, importlib.import_module,
     pickle.loads, np.load, np.fromfile, mlc_deploy.compile, mlc_deploy.connect, Path, Path.touch,
     BOARD_TASKS["measure"], HOST_TASKS["set_aside"]],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_code_does_not(function: Callable[..., Any], tmp_path: Path) -> None:
    evil = Calls(function, f"touch {tmp_path / 'ran'}")
    for content in (evil, [evil], Call("measure", (evil,), "ada")):
        with pytest.raises(NotData, match="is not data"):
            unpacked(pickle.dumps(content))
    assert not list(tmp_path.iterdir())


def test_functions_hidden_in_names_do_not() -> None:
    for module, name in (
        ("mlc_deploy.farm.payload", "builtins.eval"),
        ("mlc_deploy.cli.main", "main"),
        ("mlc_deploy.cli.__main__", "x"),
        ("mlc_deploy.driver.workers", "subprocess"),
        ("mlc_deploy.errors", "traceback"),
        ("builtins", "eval"),
        ("builtins", "SystemExit"),
        ("functools", "reduce"),
        ("numpy", "load"),
    ):
        names = b"".join(b"\x8c" + bytes([len(s)]) + s.encode() for s in (module, name))
        with pytest.raises(NotData, match="is not data"):
            unpacked(b"\x80\x04" + names + b"\x93.")


@pytest.mark.parametrize("content", [b"", b"x", b"\x80\x05", b"\x80\x05N", b"cos\nsystem\n."])
def test_damage_is_no_data(content: bytes) -> None:
    with pytest.raises(NotData):
        unpacked(content)


# Data classes whose objects do something of their own when they are made: they check or derive
# their fields. A further one has to be read before it stands here.
MADE_BY_HAND = {
    "mlc_deploy.decode.sampling.Sampling",
    "mlc_deploy.frontend.layers.windows.Window",
    "mlc_deploy.graph.views.Memory",
    "mlc_deploy.ir.nodes.Buffer",
    "mlc_deploy.passes.context.PassContext",
    "mlc_deploy.script.tir.Scalar",
    "mlc_deploy.te.tensor.Tensor",
    "mlc_deploy.tune.api.Options",
    "mlc_deploy.tvm.target.Target",
    "mlc_targets.target.Target",
}
MAKING = ("__init__", "__new__", "__post_init__", "__setstate__", "__del__", "__set_name__")


def data_classes() -> Iterator[type]:
    for package in (mlc_deploy, mlc_rpc, mlc_targets):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.startswith(ACTING) or found.name.endswith("__main__"):
                continue
            try:
                module = importlib.import_module(found.name)
            except ImportError:  # of an optional package
                continue
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == found.name and is_data(value):
                    yield value


def test_few_classes_of_data_do_something_when_they_are_made() -> None:
    import enum

    found = set()
    for cls in data_classes():
        if issubclass(cls, (enum.Enum, Exception)):
            continue
        for name in MAKING:
            code = getattr(vars(cls).get(name), "__code__", None)
            if code is not None and code.co_filename.endswith(
                f"{cls.__module__.split('.')[-1]}.py"
            ):
                found.add(f"{cls.__module__}.{cls.__qualname__}")
    assert found <= MADE_BY_HAND, found - MADE_BY_HAND


def test_tasks_have_names() -> None:
    for name, function in (BUILD_TASKS | BOARD_TASKS | HOST_TASKS).items():
        assert task_of(function) == name
    assert task_of(os.system) == ""


def test_a_call_opens_for_members_and_its_result_for_the_caller() -> None:
    members = new_private()
    caller = calling(public_of(members))
    sealed = caller.seal_call(b"a model")
    assert b"a model" not in sealed
    plain, keys = opened_call(members, sealed)
    assert plain == b"a model"
    answer = keys.seal_result(b"an answer")
    assert caller.open_result(answer) == b"an answer"
    assert keys.seal_result(b"an answer") != answer
    other = calling(public_of(members))
    with pytest.raises(Unsealable):
        other.open_result(answer)
    with pytest.raises(Unsealable):
        opened_call(new_private(), sealed)
    with pytest.raises(Unsealable):  # a result is no call, and a call no result
        caller.open_result(sealed)


@pytest.mark.parametrize("at", [0, 31, 32, 43, 44, -1])
def test_changed_calls_do_not_open(at: int) -> None:
    members = new_private()
    sealed = bytearray(calling(public_of(members)).seal_call(b"a model"))
    sealed[at] ^= 1
    with pytest.raises(Unsealable):
        opened_call(members, bytes(sealed))


@pytest.mark.parametrize("sealed", [b"", b"short", bytes(32), bytes(200)])
def test_what_was_never_sealed_does_not_open(sealed: bytes) -> None:
    with pytest.raises(Unsealable):
        opened_call(new_private(), sealed)
