"""CPU detection: names that LLVM knows, and what QEMU's models are known to have."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pytest

from tests.runtime.driver import RUNTIME, run_driver


def describe(machine: str, cpu: str = "") -> tuple[str, str, set[str]]:
    """Machine, model of core 0, features."""
    result = run_driver(machine, cpu=cpu)
    assert result.returncode == 0
    own, model, *features = result.stdout.decode().splitlines()
    assert len(features) == len(set(features))
    return own, model, set(features)


# What the models have, from their reference manuals: some that are there, some that are not.
MODELS = {
    ("arm", "cortex-a7"): (
        {"v7", "neon", "vfp3", "vfp4", "d32", "fp16", "hwdiv", "hwdiv-arm", "thumb2"},
        {"v8", "fullfp16", "dotprod", "crc", "fp-armv8"},
    ),
    ("arm", "cortex-a9"): (
        {"v7", "neon", "vfp3", "d32", "thumb2"},
        {"vfp4", "hwdiv", "hwdiv-arm", "v8"},
    ),
    # QEMU 7 does not tell 32-bit programs of later extensions (dotprod, ...), though it has them.
    ("arm", "max"): ({"neon", "v8", "fp-armv8", "crc", "aes", "sha2"}, set()),
    ("aarch64", "cortex-a53"): (
        {"v8a", "neon", "fp-armv8", "crc", "aes", "sha2"},
        {"lse", "rdm", "dotprod", "fullfp16", "sve", "rcpc"},
    ),
    ("aarch64", "cortex-a76"): (
        {"neon", "lse", "rdm", "dotprod", "fullfp16", "rcpc"},
        {"sve", "i8mm", "bf16", "fp16fml"},
    ),
    ("aarch64", "a64fx"): (
        {"neon", "sve", "fullfp16", "complxnum"},
        {"dotprod", "sve2", "i8mm", "bf16"},
    ),
    ("aarch64", "max"): (
        {"dotprod", "i8mm", "bf16", "fp16fml", "sve", "sve2", "sme", "jsconv", "complxnum"},
        set(),
    ),
    ("x86_64", "qemu64"): ({"sse2", "sse3", "cx16"}, {"avx", "avx2", "fma", "avx512f"}),
}


@pytest.mark.parametrize(("machine", "cpu"), MODELS)
def test_features_of_a_model(machine: str, cpu: str) -> None:
    has, has_not = MODELS[machine, cpu]
    own, _, features = describe(machine, cpu)
    assert own == machine
    assert has <= features
    assert not has_not & features


@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "a64fx"])
def test_model_is_named(cpu: str) -> None:
    if platform.machine() == "aarch64":
        pytest.skip("the kernel shows the cores of this machine, not QEMU's; try an x86-64 one")
    assert describe("aarch64", cpu)[1] == cpu


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 machine")
def test_x86_features_are_those_of_the_kernel() -> None:
    """The kernel names them otherwise; these are the ones that decide between our kernels."""
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    names = {"sse4_1": "sse4.1", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c",
             "bmi1": "bmi", "bmi2": "bmi2", "abm": "lzcnt", "avx512f": "avx512f",
             "avx512bw": "avx512bw", "avx512vl": "avx512vl", "avx512_vnni": "avx512vnni",
             "avx_vnni": "avxvnni", "avx512_bf16": "avx512bf16"}  # fmt: skip
    _, model, features = describe("x86_64")
    assert {names[flag] for flag in flags if flag in names} == features & set(names.values())
    assert model == model.strip() != ""


TRIPLES = {
    "__aarch64__": "aarch64-unknown-linux-gnu",
    "__arm__": "armv7-unknown-linux-gnueabihf",
    "__x86_64__": "x86_64-unknown-linux-gnu",
}


@pytest.mark.parametrize("macro", TRIPLES)
def test_feature_names_are_known_to_llvm(macro: str) -> None:
    source = (RUNTIME / "src" / "cpu.c").read_text()
    part = re.split(r"#(?:if|elif) defined\(", source.split("#define BIT", 1)[1])
    table = next(p for p in part if p.startswith(macro))
    names = re.findall(r'^    X\("([^"]+)", \w+, \w+, ', table, re.MULTILINE)
    assert len(names) > 25
    program = (  # LLVM complains on stderr, so in a process of its own
        "import llvmlite.binding as llvm, sys\n"
        "llvm.initialize_all_targets()\n"
        "llvm.Target.from_triple(sys.argv[1]).create_target_machine(features=sys.argv[2])"
    )
    features = ",".join("+" + name for name in [*names, "no-such-feature"])
    result = subprocess.run(
        [sys.executable, "-c", program, TRIPLES[macro], features], capture_output=True, text=True
    )
    unknown = set(re.findall(r"'\+(\S+)' is not a recognized feature", result.stderr))
    assert unknown == {"no-such-feature"}
