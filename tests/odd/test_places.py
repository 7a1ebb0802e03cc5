"""Containers, limits and kernels that keep the board's program from something."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.local import local_machine
from tests.runtime.board import X, module_of

pytestmark = pytest.mark.odd
Runtime = Callable[[str], Path]

# What starts the program, and whether its kernels still run as another user.
ROOTS = {
    "as usual": ("", True),
    "no right of root": ("setpriv --bounding-set=-all --inh-caps=-all", False),
    "may not change its user": ("setpriv --bounding-set=-setuid,-setgid", False),
    "a user namespace of one id": ("unshare -Ur", False),
}
FORBIDS = "strace -f -o /dev/null -e trace=memfd_create -e inject=memfd_create:error="


def started(how: str, folder: Path, runtime_of: Runtime) -> Callable[[str], Path]:
    """The runtime, by a command that starts it; its cache is in the folder."""
    (folder / "cache").mkdir(mode=0o700, exist_ok=True)
    program = folder / "start"
    command = f"{how} {runtime_of(local_machine())} --cache {folder}/cache"
    program.write_text(f"#!/bin/sh\n{command if ';' in how else 'exec ' + command}\n")
    program.chmod(0o755)
    return lambda machine: program


@pytest.mark.parametrize("name", ROOTS)
def test_roots(name: str, tmp_path: Path, runtime_of: Runtime) -> None:
    how, is_nobody = ROOTS[name]
    if how and subprocess.run([*how.split(), "true"], capture_output=True).returncode:
        pytest.skip(f"this container does not do: {how}")
    with connect("local://", started(how, tmp_path, runtime_of)) as session:
        module, a = session.load(module_of("add")), session.tensor(X)
        module["add"](a, a, a)
        np.testing.assert_array_equal(a.numpy(), 2 * X)
        assert session.device.box is not None
        assert ("user" in session.device.box) is is_nobody
        lacks = [line for line in session.warnings if "kernels run as root" in line]
        assert len(lacks) == (not is_nobody), session.warnings


def test_a_small_limit_of_file_sizes(tmp_path: Path, runtime_of: Runtime) -> None:
    """A tensor beyond it is refused; the session goes on, and so does what fits."""
    with connect("local://", started("ulimit -f 10;", tmp_path, runtime_of)) as session:
        with pytest.raises(errors.OutOfMemory) as caught:
            session.empty((1 << 20,), "uint8")
        assert str(caught.value) == (
            "a tensor of 1048576 bytes is larger than a file may be, 5120 bytes\n"
            "  on:  local://, method tensor.new\n"
            "  try: ulimit -f unlimited, in a start file of the board's shell"
        )
        np.testing.assert_array_equal(session.tensor(X).numpy(), X)


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_no_memory_objects(error: str, tmp_path: Path, runtime_of: Runtime) -> None:
    """A file without a name takes their place."""
    if not shutil.which("strace"):
        pytest.skip("apt install strace")
    how = FORBIDS + error
    if subprocess.run([*how.split(), "true"], capture_output=True).returncode:
        pytest.skip("this container allows no strace")
    with connect("local://", started(how, tmp_path, runtime_of), timeout=60) as session:
        module, a = session.load(module_of("add")), session.tensor(X)
        module["add"](a, a, a)
        np.testing.assert_array_equal(a.numpy(), 2 * X)
        large = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8)
        np.testing.assert_array_equal(session.tensor(large).numpy(), large)
        name = session.put(large.tobytes())
        assert session.get(name) == large.tobytes()
        assert session.device.box is not None and "memory" not in session.device.box
    assert not list((tmp_path / "cache").glob("mem-*"))
