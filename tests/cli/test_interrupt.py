"""Ctrl-C while the board works: the exit status, and that the work has ended, too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.onnx_models import light_model


@pytest.mark.skipif(not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user")
def test_the_work_ends_with_the_command(tmp_path: Path) -> None:
    model = tmp_path / "squeezenet.onnx"
    onnx.save(light_model("squeezenet"), model)
    command = [sys.executable, "-m", "mlc_deploy.cli", str(model), "--board", "qemu://max"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        for line in child.stderr:
            if line.startswith("upload"):  # so it runs now, for several seconds
                break
        emulators = children(child.pid)
        assert emulators, f"it ended with {child.wait()}"
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait(20) == 130
    assert said.splitlines()[-1] == "error: interrupted"
    assert not [pid for pid in emulators if alive(pid)]


def test_a_command_that_has_hardly_begun(tmp_path: Path) -> None:
    """Imports take the first half second; numpy's is where a Ctrl-C comes as likely as not."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    for start in ("from mlc_deploy.cli import main; raise SystemExit(main())", None):
        command = [sys.executable, *(("-c", start) if start else ("-m", "mlc_deploy.cli"))]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def children(pid: int) -> list[int]:
    """Of all its threads."""
    folder = Path(f"/proc/{pid}/task")
    return [int(n) for task in folder.iterdir() for n in (task / "children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
