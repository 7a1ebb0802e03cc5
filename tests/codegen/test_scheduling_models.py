"""Which CPU LLVM puts instructions in order for; an incomplete model of one ends the process."""

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from mlc_deploy import Target, te
from mlc_deploy.ir import TUNE_CPU, PrimFunc
from mlc_deploy.lower import lower
from mlc_deploy.schedule import Schedule
from mlc_targets.cpus import CPUS
from mlc_targets.scheduling import CHOICES, LLVM_MAJOR


def doubled(dtype: str) -> PrimFunc:
    x = te.placeholder((8,), dtype, "x")
    return te.create_prim_func([x, te.compute((8,), lambda i: x[i] + x[i], name="y")], "doubled")


def model_of(func: PrimFunc, target: str) -> str | None:
    found: str | None = lower(func, Target(target)).machine.attrs.get(TUNE_CPU)
    return found


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
    assert model_of(doubled(dtype), target) == model


def test_the_model_that_a_schedule_asks_for() -> None:
    sch = Schedule(doubled("float32"))
    sch.tune_for("kryo")
    assert model_of(sch.func, "armv7a") == "kryo"


@pytest.mark.parametrize("cpu", ["cortex-a57", "cortex-a72"])  # LLVM's models of both lack loads
def test_a_cpu_whose_model_is_incomplete(cpu: str, tmp_path: Path) -> None:
    target = f"llvm -mtriple=armv7a-linux-gnueabihf -mcpu={cpu} -device=arm_cpu"
    job = ["-m", "mlc_deploy.cli", "--target", target, "--board", "none"]
    environment = {"MLC_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *job], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_table_holds_for_the_llvm_in_use() -> None:
    """Every model is one that this LLVM knows, and choices were measured with its version."""
    assert all(c.model in CPUS[c.arch] for c in CHOICES)
    assert all(c.only in ("", *CPUS[c.arch]) for c in CHOICES)
    assert all(c.other_than in ("", *CPUS[c.arch]) for c in CHOICES)
    assert llvm.llvm_version_info[0] == LLVM_MAJOR, (
        f"mlc_targets/scheduling.py holds for LLVM {LLVM_MAJOR}, in use is "
        f"{llvm.llvm_version_info[0]}: run scripts/bench/scheduling_models.py, mend the table"
    )


def test_one_choice_fits() -> None:
    for c in CHOICES:
        others = [o for o in CHOICES if (o.intent, o.arch) == (c.intent, c.arch)]
        assert others == [c]
