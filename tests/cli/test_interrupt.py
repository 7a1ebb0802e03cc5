"""Ctrl-C at random moments of jobs: the exit status, what is said, and that nothing is left."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import mlc_deploy as mlc
from mlc_deploy.driver.cache import Cache
from mlc_deploy.frontend import from_onnx
from mlc_deploy.tune import Database
from tests.cli.command import MODELS
from tests.cli.command_process import COMMAND, PATIENCE, CommandProcess, until

linux = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)
pytestmark = [linux, qemu]

DIGITS = MODELS / "digits_cnn.onnx"
DB = "tuned.jsonl"
COMPILE = (DIGITS, "--target", "aarch64", "--board", "none", "--save", "m.mlc", "--json", "r.json")
RUN = (DIGITS, "--target", "aarch64", "--board", "qemu://max", "--json", "r.json")
TUNE = (
    "tune", DIGITS, "--target", "aarch64", "--board", "qemu://max", "--db", DB, "--json", "r.json",
    "--trials", "24", "--only", "pool",
)  # fmt: skip
LARGE = 64 << 20  # bytes of weights

Job = Sequence[str | Path]


def long_model(folder: Path) -> Path:
    """A saved model that turns a hundred million times; numpy's reference would, too."""
    text = """<ir_version: 8, opset_import: ["" : 17]> long (float[16] x) => (float[16] y) {
        iterations = Constant <value = int64 {100000000}> ()
        go = Constant <value = bool {1}> ()
        y = Loop <body = iteration (int64 i, bool c, float[16] a) => (bool d, float[16] b)
            { d = Identity(c)  b = Cos(a) }> (iterations, go, x)
    }"""
    return mlc.compile(from_onnx(parser.parse_model(text)), "aarch64").save(folder / "long.mlc")


def test_the_work_ends_with_the_command(tmp_path: Path) -> None:
    args = (*COMMAND, long_model(tmp_path), "--board", "qemu://max")
    with CommandProcess(tmp_path, args) as process:
        assert until(lambda: "\nupload" in process.stderr or process.ended)  # it runs for minutes
        assert len(process.running()) > 1, process.stderr
        process.send(signal.SIGINT, to_group=False)
        assert process.wait() == 130
        assert process.stderr.splitlines()[-1] == "error: interrupted"
        assert until(lambda: not process.running())


@pytest.mark.parametrize("start", ["from mlc_deploy.cli import main; main()", None])
def test_a_command_that_has_hardly_begun(start: str | None, tmp_path: Path) -> None:
    """Imports take the first half second; numpy's is where a Ctrl-C comes as likely as not."""
    (tmp_path / "numpy.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    args = ("-c", start) if start else COMMAND
    with CommandProcess(tmp_path, args, {"PYTHONPATH": str(tmp_path)}) as process:
        assert (process.wait(), process.stderr) == (130, "error: interrupted\n")


@dataclass
class Moments:
    """Moments for a signal within the first `span` seconds after the command's first line."""

    random: random.Random
    span: float

    def disturb(self, folder: Path, job: Job) -> bool:
        """Ends the job at a random moment and looks at what is left; False where it was over."""
        folder.mkdir()
        delay, to_group = self.random.uniform(0, self.span), self.random.random() < 0.5
        with CommandProcess(folder, (*COMMAND, *job)) as process:
            assert until(lambda: process.ended or process.catches_signals())
            began = time.monotonic()
            until(lambda: process.ended, delay)
            if process.ended or process.stdout:  # what is printed last
                self.span = time.monotonic() - began
                return False
            process.send(signal.SIGINT, to_group)
            status = process.wait()
            said = f"after {delay:.3f} s of {self.span:.1f}: {process.stderr}"
            assert status == 130, said
            assert "Traceback" not in said and "ignored" not in said and "mistake" not in said
            assert until(lambda: not process.running()), said
            assert process.left() == [], said
            for entry in (process.cache / "kernels").glob("??/*"):
                key = bytes.fromhex(entry.parent.name + entry.name)
                assert Cache(process.cache / "kernels").get(key) is not None, said
            if (folder / DB).exists():
                assert not Database(folder / DB).notes, said
        return True

    def disturb_often(self, folder: Path, job: Job, times: int) -> None:
        """As often, each time in a folder of its own; then the job goes on in the last one."""
        done = 0
        for n in range(10 * times):
            done += self.disturb(folder / str(n), job)
            if done == times:
                break
        assert done == times
        with CommandProcess(folder / str(n), (*COMMAND, *job)) as process:
            assert process.wait(10 * PATIENCE) == 0, process.stderr


def drawn(seed: int | None = None) -> random.Random:
    seed = secrets.randbits(32) if seed is None else seed
    print(f"seed {seed}")  # shown where the test fails
    return random.Random(int(os.environ.get("MLC_TEST_SEED", seed)))


@pytest.mark.parametrize("job", [COMPILE, RUN, TUNE], ids=["compile", "run", "tune"])
def test_at_a_random_moment(job: Job, tmp_path: Path) -> None:
    """As often as is quick; below it is 200 times."""
    Moments(drawn(), span=3.0).disturb_often(tmp_path, job, 2)


def large_model(folder: Path) -> Path:
    """A saved model whose upload takes longer than all else."""
    rows, columns = 1 << 12, LARGE // (4 << 12)
    weights = np.random.default_rng(1).standard_normal((rows, columns), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx"
    )
    job = (folder / "m.onnx", "--target", "host", "--board", "none", "--save", folder / "m.mlc")
    with CommandProcess(folder, (*COMMAND, *job)) as process:
        assert process.wait() == 0, process.stderr
    return folder / "m.mlc"


@pytest.mark.soak
@pytest.mark.parametrize("name", ["compile", "upload", "run", "tune"])
def test_at_fifty_random_moments(name: str, tmp_path: Path) -> None:
    jobs: dict[str, Job] = {"compile": COMPILE, "run": RUN, "tune": TUNE}
    job = jobs[name] if name in jobs else (large_model(tmp_path), "--board", "local://")
    whole = tmp_path / "whole"
    whole.mkdir()
    with CommandProcess(whole, (*COMMAND, *job)) as process:
        assert until(process.catches_signals)
        began = time.monotonic()
        assert process.wait(10 * PATIENCE) == 0, process.stderr
    moments = tmp_path / "moments"
    moments.mkdir()
    Moments(drawn(), span=time.monotonic() - began).disturb_often(moments, job, 50)
