"""QEMU's stand-ins: the plainest that can run the code; the table says what they really have."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mlc_targets import Target, TargetError, qemu_cpu
from mlc_targets.features import REQUIRED
from mlc_targets.qemu import _STAND_INS, qemu_features
from mlc_targets.target import Arch
from tests.runtime.driver import RUNTIME, run_driver

MODELS = [(arch, cpu) for arch, cpus in _STAND_INS.items() for cpu in cpus]


@pytest.mark.parametrize(("arch", "cpu"), MODELS)
def test_features_are_those_that_the_runtime_sees(arch: Arch, cpu: str) -> None:
    if not shutil.which(f"qemu-{arch}"):
        pytest.skip(f"qemu-{arch} is not installed; try: apt-get install qemu-user")
    result = run_driver(arch, cpu=cpu)
    machine, _, *reported = result.stdout.decode().splitlines()
    assert (result.returncode, machine) == (0, arch)
    assert set(reported) & REQUIRED[arch] == qemu_features(arch, cpu)


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ("armv7a", "cortex-a8"),
        ("llvm -mtriple=armv7a-linux-gnueabihf", "cortex-a8"),
        ("armv7a -mattr=+vfp4", "cortex-a7"),
        ("pynq", "cortex-a9"),
        ("beagleai", "cortex-a15"),
        ("rk3288", "cortex-a7"),
        ("rasp3b", "max"),
        ("aarch64", "cortex-a53"),
        ("raspberry-pi/4b", "cortex-a72"),
        ("raspberry-pi/5", "cortex-a76"),
        ("rk3568", "cortex-a76"),
        ("aws/graviton2", "neoverse-n1"),
        ("aws/graviton3", "max"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=a64fx", "a64fx"),
        ("aarch64 -mcpu=cortex-a72 -mattr=+dotprod", "cortex-a76"),
        ("x86_64", "max"),
    ],
)
def test_stand_in(spec: str, cpu: str) -> None:
    assert qemu_cpu(Target(spec)) == cpu


def test_no_stand_in() -> None:
    target = Target("x86_64 -mcpu=skylake-avx512 -mattr=-avx512cd,-avx512vl,-avx512dq")
    with pytest.raises(TargetError) as error:
        qemu_cpu(target)
    assert str(error.value) == (
        "no CPU of QEMU 7.2 has avx512bw, avx512f\n"
        f"  in:  {target}\n"
        "  try: -mattr=-avx512bw,-avx512f"
    )
    with pytest.raises(TargetError) as error:
        qemu_cpu(Target("raspberry-pi/5-armv7a"))
    assert error.value.hint == "-mattr=-dotprod,-fullfp16"
    assert qemu_cpu(Target(f"raspberry-pi/5-armv7a {error.value.hint}")) == "max"


@pytest.mark.parametrize("arch", ["aarch64", "arm", "x86_64"])
def test_the_runtime_knows_every_name(arch: str) -> None:
    source = Path(RUNTIME, "src", "cpu.c").read_text()
    section = source.split(f"defined(__{arch}__)\n")[-1].split("#e")[0]
    names = set(re.findall(r'X\("([^"]+)", \w+, \w+, ', section))
    assert {"neon", "sse2"} & names
    # No board reports the last one so far, so code that needs it is refused everywhere: safe.
    assert REQUIRED[arch] - names <= {"faminmax"}
