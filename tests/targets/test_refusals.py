"""Targets that cannot be: each is refused, and the whole message is pinned in tests/golden."""

from __future__ import annotations

import builtins
import pickle
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mlc_targets import Target, TargetError, nearest
from mlc_targets import host as host_module
from mlc_targets import resolve as resolve_module

A64 = "llvm -mtriple=aarch64-linux-gnu"
A32 = "llvm -mtriple=armv7a-linux-gnueabihf"

# By subject; the golden file of a subject holds every message of its group, in this order.
REFUSED: dict[str, list[Any]] = {
    "names": [
        "raspberry-pi/6",
        "rasp5x -num-cores=2",
        "cuda",
        "lvm -mtriple=aarch64-linux-gnu",
        "cortex-a72",
        "armv7a-linux-gnueabihf",
        "arm64-apple-darwin",
        "aarch64-pc-windows-msvc",
        f"{A64} -host=nothing",
    ],
    "text": [
        " ",
        "-mcpu=cortex-a72",
        "llvm mcpu=cortex-a72",
        "llvm fast",
        "llvm -model='x",
        "llvm -mcpu -mattr=+neon",
        "llvm -mcup=cortex-a72",
        "llvm -zzz=1",
        f"{A64} -mcpu=cortex-a72 --mcpu=cortex-a53",
        "armv7a -num-cores=four",
        "armv7a -num-cores=0",
        "armv7a -opt-level=4",
        "armv7a -opt-level=-1",
        "armv7a -fast-math=maybe",
        f"{A64} -keys='a b'",
    ],
    "types": [
        '{"kind": "llvm", mtriple: "aarch64"}',
        "{" * 3,
        '{"mtriple": "aarch64-linux-gnu"}',
        {"kind": "llvm", "mattr": 3},
        {"kind": "llvm", "mattr": ["+neon", 3]},
        {"kind": "llvm", "mcpu": ["cortex-a72"]},
        {"kind": "llvm", "fast-math": "yes please"},
        {"kind": "llvm", "num-cores": True},
        {"kind": "llvm", "opt-level": 2.0},
        {"kind": 7},
        {"kind": "llvm", 3: 4},
        {"kind": "llvm", "mtripel": "aarch64-linux-gnu"},
        {"kind": "llvm", "num-cores": 1, "num_cores": 2},
        {"kind": "llvm", "host": 4},
        4,
        None,
    ],
    "triples": [
        "llvm -mtriple=aarch64_be-linux-gnu",
        "llvm -mtriple=armeb-linux-gnueabihf",
        "llvm -mtriple=riscv64-linux-gnu",
        "llvm -mtriple=aarch46-linux-gnu",
        "llvm -mtriple=thumbv7em-none-eabi",
        "llvm -mtriple=armv7m-none-eabi",
        "llvm -mtriple=armv8.1m.main-none-eabi",
        "llvm -mtriple=thumbv7a-linux-gnueabihf",
        "llvm -mtriple=i686-linux-gnu",
        "llvm -mtriple=armv7a-linux-gnu",
        "llvm -mtriple=aarch64-linux-gnueabihf",
        "llvm -mtriple=x86_64-linux-gnux32",
        "llvm -mtriple=aarch64-haiku",
        "llvm -mtriple=aarch64-linuks-gnu",
        "llvm -mtriple=armv7a-linux-gnueabihf-extra-words",
    ],
    "cpus": [
        f"{A64} -mcpu=cortex-a99",
        f"{A64} -mcpu=zzz",
        f"{A64} -mcpu=native",
        f"{A64} -mcpu=haswell",
        f"{A64} -mcpu=cortex-a7",
        f"{A32} -mcpu=cortex-a720",
        f"{A32} -mcpu=cortex-m4",
        f"{A32} -mcpu=cortex-r5",
        f"{A32} -mcpu=arm1176jzf-s",
        f"{A32} -mcpu=mpcore",
        "llvm -mtriple=armv8a-linux-gnueabihf -mcpu=cortex-a7",
        "x86_64 -mcpu=cortex-a72",
    ],
    "features": [
        f"{A64} -mattr=+dotprd",
        f"{A64} -mattr=+asimd",
        f"{A32} -mattr=-VFPv4",
        f"{A64} -mattr=+vfp4",
        f"{A64} -mattr=+zzzz",
        f"{A32} -mattr=neon",
        f"{A32} -mattr=+neon,-neon",
        f"{A64} -mattr=+dotprod,-neon",
        f"{A64} -mattr=+v8.4a,-dotprod",
        f"{A64} -mattr=-v8.2a",
        f"{A32} -mattr=-thumb2",
        f"{A64} -mattr=-fp-armv8",
        f"{A32} -mattr=-fp64",
        "x86_64 -mattr=-sse2",
        f"{A32} -mattr=+soft-float",
    ],
    "abi": [
        f"{A32} -mfloat-abi=soft",
        "llvm -mtriple=armv7a-linux-gnueabi -mfloat-abi=hard",
        "llvm -mtriple=armv7a-linux-androideabi -mfloat-abi=hard",
        f"{A64} -mfloat-abi=soft",
        f"{A32} -mfloat-abi=softfp",
        f"{A64} -mabi=lp64d",
        f"{A64} -device=mali",
        "x86_64 -device=arm_cpu",
    ],
    "boards": [
        "raspberry-pi/zero",
        "raspberry-pi/1b",
        "armv6",
        "llvm -mtriple=armv6-linux-gnueabihf",
        "llvm -mtriple=armv5te-linux-gnueabi",
        "llvm -mtriple=arm64-apple-darwin22.1.0",
        "llvm -mtriple=x86_64-pc-windows-msvc",
        "llvm -mtriple=aarch64-freebsd",
    ],
    "without_effect": [
        f"{A64} -libs=mkl",
        f"{A64} -runtime=cpp",
        f"{A64} -executor=aot",
        f"{A64} -system-lib",
        f"{A64} -link-params=0",
        {"kind": "llvm", "system_lib": True},
    ],
}


@pytest.mark.parametrize("subject", REFUSED)
def test_refusals(subject: str, golden: Callable[..., None]) -> None:
    messages = []
    for spec in REFUSED[subject]:
        with pytest.raises(TargetError) as error:
            Target(spec)
        assert error.value.hint, error.value
        messages.append(f"Target({spec!r})\n{error.value}\n")
    golden("\n".join(messages), f"target_refusals_{subject}")


def test_cpu_of_another_machine_than_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "host_triple", lambda: "x86_64-unknown-linux-gnu")
    with pytest.raises(TargetError) as error:
        Target("llvm -device=arm_cpu -mcpu=cortex-a72")
    assert str(error.value) == (
        "mcpu 'cortex-a72' is a CPU of aarch64 and arm, not of x86_64"
        " (this host's, since no mtriple is given)\n"
        "  in:  llvm -device=arm_cpu -mcpu=cortex-a72\n"
        "  try: -mtriple=aarch64-linux-gnu or -mtriple=armv7a-linux-gnueabihf"
    )


def test_host_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_llvmlite(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "llvmlite":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_llvmlite)
    with pytest.raises(TargetError) as error:
        Target("host")
    assert str(error.value) == (
        "the CPU of this machine is read by llvmlite, which is not installed\n"
        "  in:  host\n"
        "  try: pip install llvmlite, or say what it is: llvm -mtriple=... -mcpu=..."
    )
    assert Target("armv7a").has("neon")


@pytest.mark.parametrize(
    ("machine", "system", "pointer_bytes", "triple"),
    [
        ("x86_64", "linux", 8, "x86_64-unknown-linux-gnu"),
        ("aarch64", "linux", 8, "aarch64-unknown-linux-gnu"),
        ("aarch64", "linux", 4, "armv7a-unknown-linux-gnueabihf"),
        ("armv7l", "linux", 4, "armv7a-unknown-linux-gnueabihf"),
    ],
)
def test_triple_of_the_host(
    machine: str, system: str, pointer_bytes: int, triple: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(struct, "calcsize", lambda _: pointer_bytes)
    assert host_module.host_triple() == triple


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_other_systems_are_no_target(
    system: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(TargetError) as error:
        Target("host")
    assert str(error.value) == (
        f"boards run Linux, and no code is generated for this machine, which runs {name}\n"
        "  in:  host\n"
        "  try: a board, as --target raspberry-pi/5 or --board ssh://[user@]host"
    )


@pytest.mark.parametrize(
    ("arch", "cpu", "flags", "mattr"),
    [
        ("x86_64", "haswell", {"avx2": True, "fma": True, "unheard-of": True}, ()),
        # A virtual machine without AVX: what needs it goes too.
        ("x86_64", "haswell", {"avx": False, "avx2": False, "fma": False}, ("-avx",)),
        ("x86_64", "x86-64", {"avx2": True, "sse4.2": True, "avx512f": False}, ("+avx2",)),
        ("x86_64", "x86-64", {"avx512f": True, "avx2": False}, ()),
        ("aarch64", "cortex-a53", {"neon": True, "crc": False, "dotprod": True}, None),
    ],
)
def test_how_a_host_differs_from_its_cpu(
    arch: str, cpu: str, flags: dict[str, bool], mattr: tuple[str, ...] | None
) -> None:
    expected = ("+dotprod", "-crc") if mattr is None else mattr
    assert host_module.difference(arch, cpu, flags) == expected


def test_host_is_what_llvm_says_it_is() -> None:
    from llvmlite import binding

    target = Target("host")
    flags = dict(binding.get_host_cpu_features())
    lacking = {name for name in target.features if flags.get(name) is False}
    assert lacking == set()
    assert all(target.has(name) for name in ("neon", "avx2", "avx512f") if flags.get(name))


def test_nearest_names() -> None:
    assert nearest("cortx-a73", ["cortex-a7", "cortex-a73", "znver3"])[0] == "cortex-a73"
    assert nearest("Conv2", ["Conv", "conv2d", "Gemm"]) == ("conv2d", "Conv")
    assert nearest("resh", ["Reshape", "Softmax"]) == ("Reshape",)
    assert nearest("zzz", ["Reshape", "Softmax"]) == ()


def test_errors_travel_between_processes() -> None:
    with pytest.raises(TargetError) as error:
        Target("cuda")
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value) and again.hint == error.value.hint
