"""Which CPU LLVM puts instructions in order for; an incomplete model of one ends the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlc_deploy import Target, te
from mlc_deploy.codegen.hints import scheduling_model
from mlc_deploy.ir import PrimFunc
from mlc_deploy.schedule import Schedule


def doubled(dtype: str) -> PrimFunc:
    x = te.placeholder((8,), dtype, "x")
    return te.create_prim_func([x, te.compute((8,), lambda i: x[i] + x[i], name="y")], "doubled")


@pytest.mark.parametrize(
    ("target", "dtype", "model"),
    [
        ("raspberry-pi/4b-armv7a", "float32", "cortex-a9"),
        ("raspberry-pi/4b-armv7a", "int8", "cortex-a7"),
        ("armv7a", "float32", "cortex-a9"),
        ("raspberry-pi/4b-aarch64", "float32", None),
        ("armv7a -mattr=-neon", "float32", None),  # has no vectors
    ],
)
def test_a_model_that_suits_the_kernel(target: str, dtype: str, model: str | None) -> None:
    assert scheduling_model(doubled(dtype), Target(target)) == model


def test_the_model_that_a_schedule_asks_for() -> None:
    sch = Schedule(doubled("float32"))
    sch.tune_for("kryo")
    assert scheduling_model(sch.func, Target("armv7a")) == "kryo"


@pytest.mark.parametrize("cpu", ["cortex-a57", "cortex-a72"])  # LLVM's models of both lack loads
def test_a_cpu_whose_model_is_incomplete(cpu: str, tmp_path: Path) -> None:
    target = f"llvm -mtriple=armv7a-linux-gnueabihf -mcpu={cpu} -device=arm_cpu"
    job = ["-m", "mlc_deploy.cli", "--target", target, "--board", "none"]
    environment = {"MLC_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *job], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
