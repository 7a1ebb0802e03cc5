"""The tables of CPUs, features and names, held against LLVM itself."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

from mlc_targets import Target, TargetError, board_names
from mlc_targets.cpus import CPUS
from mlc_targets.features import IMPLIES, REQUIRED, VOCABULARY, closure, is_unused
from mlc_targets.llvm_names import MATTR_NAMES
from tests.targets import llvm_says

ARCHES = ("aarch64", "arm", "x86_64")
TRIPLES = {
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "x86_64": "x86_64-linux-gnu",
}
# The CPU of each architecture that has most, and one that has least.
RICH = {"aarch64": "fujitsu-monaka", "arm": "cortex-a510", "x86_64": "sapphirerapids"}
PLAIN = {"aarch64": "generic", "arm": "cortex-a8", "x86_64": "x86-64"}


def assert_llvm_agrees(targets: Iterable[Target]) -> None:
    """Every feature of the vocabulary: LLVM has it exactly where the Target has it."""
    asked: list[llvm_says.Question] = []
    targets = list(targets)
    for target in targets:
        names = sorted(VOCABULARY[target.arch])
        asked.append((target.mtriple, target.llvm_cpu, target.llvm_features, names))
    wrong = {}
    for target, found in zip(targets, llvm_says.features(asked), strict=True):
        if found != target.features:
            wrong[str(target)] = {
                "only LLVM": sorted(found - target.features),
                "only here": sorted(target.features - found),
            }
    assert not wrong


@pytest.mark.parametrize("arch", ARCHES)
def test_features_of_every_cpu(arch: str) -> None:
    triple = TRIPLES[arch]
    assert_llvm_agrees(Target(f"llvm -mtriple={triple} -mcpu={cpu}") for cpu in CPUS[arch])


def test_features_without_a_cpu() -> None:
    assert_llvm_agrees(
        Target(f"llvm -mtriple={triple}")
        for triple in (*TRIPLES.values(), "armv8a-linux-gnueabihf")
    )


def test_features_of_every_board() -> None:
    assert_llvm_agrees({Target(name) for name in board_names()})


def legal(texts: Iterable[str]) -> list[Target]:
    """Those of the target strings that are not refused."""
    found = []
    for text in texts:
        try:
            found.append(Target(text))
        except TargetError:
            pass
    return found


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_what_each_feature_brings_and_takes(arch: str, sign: str) -> None:
    cpu = (PLAIN if sign == "+" else RICH)[arch]
    begin = f"llvm -mtriple={TRIPLES[arch]} -mcpu={cpu} -mattr="
    telling = set(IMPLIES[arch]) | {f for name in IMPLIES[arch] for f in closure(arch, name)}
    targets = legal(f"{begin}{sign}{name}" for name in sorted(telling))
    assert len(targets) >= 20  # the rest would leave no floating point, or remove a level
    assert_llvm_agrees(targets)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_other_names_bring_and_take_nothing(arch: str, sign: str) -> None:
    cpu = (PLAIN if sign == "+" else RICH)[arch]
    begin = f"llvm -mtriple={TRIPLES[arch]} -mcpu={cpu} -mattr="
    inert = sorted(
        n for n in MATTR_NAMES[arch] if closure(arch, n) == {n} and n not in VOCABULARY[arch]
    )
    inert = [n for n in inert if not re.match(r"v\d", n)]
    if sign == "+" and arch != "x86_64":  # those are refused
        inert = [n for n in inert if not is_unused(n)]
    assert_llvm_agrees([Target(begin + ",".join(sign + n for n in inert))])


@pytest.mark.parametrize("arch", ARCHES)
def test_random_combinations(arch: str) -> None:
    draw = random.Random(arch)
    texts = []
    for _ in range(120):
        names = draw.sample(sorted(VOCABULARY[arch]), draw.randint(1, 4))
        mattr = ",".join(draw.choice("+-") + name for name in names)
        cpu = draw.choice([*CPUS[arch], *["generic"] * 10])
        triple = draw.choice([TRIPLES[arch], "armv8a-linux-gnueabihf"][: 1 + (arch == "arm")])
        texts.append(f"llvm -mtriple={triple} -mcpu={cpu} -mattr={mattr}")
    targets = legal(texts)
    assert len(targets) > 40
    assert_llvm_agrees(targets)


# Names that LLVM lists and that are no -mattr here, by reason.
LEFT_OUT = {
    "aarch64": r"all|v8r|execute-only|oryon-1",
    "arm": (
        r"armv.*|32bit|v4t|v5te?|v6m|v7clrex|v8m.*|v8\.1m.*|[mra]class|[mr]\d+(plus)?|8msecext"
        r"|mve.*|cde.*|lob|pacbti|iwmmxt2?|xscale|big-endian-instructions|execute-only|fpregs\d*"
        r"|noarm|soft-float|thumb-mode|exynos|(vfp|fp-armv8).*sp"
    ),
    "x86_64": r"(16|32|64)bit(-mode)?|soft-float|x32",
}
CPUS_LEFT_OUT = {
    "aarch64": r"cortex-r.*",
    "arm": (
        r"arm(7|8|9|1[01]).*|mpcore.*|cortex-[mr].*|sc\d+|star.*|ep9312|iwmmxt|xscale|strongarm.*"
    ),
    # 32-bit ones; spellings with an underscore; AMD's with XOP or FMA4; those with APX
    "x86_64": (
        r"i\d86|pentium.*|prescott|lakemont|winchip.*|k6.*|c3.*|geode|athlon(-.*)?|yonah|.*_.*"
        r"|bdver\d|btver1|amdfam10|barcelona|diamondrapids|novalake|wildcatlake|atom|generic"
    ),
}


@pytest.mark.parametrize("arch", ARCHES)
def test_names_are_those_of_llvm(arch: str) -> None:
    cpus, features = llvm_says.names(TRIPLES[arch])
    assert len(cpus) > 50 and len(features) > 150
    assert set(CPUS[arch]) <= cpus
    assert {n for n in cpus - set(CPUS[arch]) if not re.fullmatch(CPUS_LEFT_OUT[arch], n)} == set()
    assert MATTR_NAMES[arch] <= features
    missing = {n for n in features - MATTR_NAMES[arch] if not re.fullmatch(LEFT_OUT[arch], n)}
    assert missing == set()
    assert REQUIRED[arch] <= VOCABULARY[arch] <= MATTR_NAMES[arch]


F32, V4F32 = "float", "<4 x float>"


def assembly(target: Target, body: str) -> str:
    """What LLVM makes, in a child process, of the function `body` for `target`."""
    program = """
import json, sys
import llvmlite.binding as b
b.initialize_all_targets(); b.initialize_all_asmprinters()
triple, cpu, features, text = json.load(sys.stdin)
machine = b.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
module = b.parse_assembly(f'target triple = "{triple}"\\n{text}')
print(machine.emit_assembly(module))
"""
    question = (target.mtriple, target.llvm_cpu, target.llvm_features, body)
    out = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(question), capture_output=True, text=True
    )
    assert out.returncode == 0 and not out.stderr, out.stderr[-2000:]
    return out.stdout


def binary(operation: str, dtype: str) -> str:
    return (
        f"define {dtype} @f({dtype} %a, {dtype} %b) {{\n"
        f"%c = {operation} {dtype} %a, %b\nret {dtype} %c\n}}"
    )


def fma(dtype: str, name: str) -> str:
    return (
        f"define {dtype} @f({dtype} %a, {dtype} %b, {dtype} %c) {{\n"
        f"%d = call {dtype} @llvm.fma.{name}({dtype} %a, {dtype} %b, {dtype} %c)\n"
        f"ret {dtype} %d\n}}\n"
        f"declare {dtype} @llvm.fma.{name}({dtype}, {dtype}, {dtype})"
    )


SDOT = (
    "define <4 x i32> @f(<4 x i32> %a, <16 x i8> %b, <16 x i8> %c) {\n"
    "%d = call <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8"
    "(<4 x i32> %a, <16 x i8> %b, <16 x i8> %c)\nret <4 x i32> %d\n}\n"
    "declare <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)"
)

# Target, function, what its code must hold, and what it must not: features mean what they say.
MEANING = [
    ("armv7a", binary("fadd", V4F32), r"vadd\.f32\s+q", r"\bs\d+, s"),
    (
        "llvm -mtriple=armv7a-linux-gnueabihf",
        binary("fadd", V4F32),
        r"vadd\.f32\s+s",
        r"\bq\d|d1[6-9]",
    ),
    (
        "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7",
        fma(F32, "f32"),
        r"vfma\.f32",
        r"fmaf",
    ),
    ("armv7a", fma(F32, "f32"), r"fmaf", r"vfma"),
    ("rasp3b", fma(V4F32, "v4f32"), r"vfma\.f32\s+q", r"fmaf"),
    ("pynq", fma(F32, "f32"), r"fmaf", r"vfma"),
    ("rasp2b", binary("sdiv", "i32"), r"sdiv", r"__aeabi_idiv"),
    ("armv7a", binary("sdiv", "i32"), r"__aeabi_idiv", r"sdiv"),
    ("rasp4b64", binary("fadd", "half"), r"fcvt", r"fadd\s+h"),
    ("raspberry-pi/5", binary("fadd", "half"), r"fadd\s+h", r"fcvt"),
    ("raspberry-pi/5", SDOT, r"sdot\s+v0\.4s", r"smull"),
    ("pixel2", binary("fadd", V4F32), r"fadd\s+v0\.4s", r"vadd"),
    ("x86_64", fma(F32, "f32"), r"fmaf", r"vfmadd"),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", fma(F32, "f32"), r"vfmadd", r"fmaf"),
]


@pytest.mark.parametrize(("text", "body", "must", "must_not"), MEANING)
def test_features_mean_what_they_say(text: str, body: str, must: str, must_not: str) -> None:
    code = "\n".join(
        line for line in assembly(Target(text), body).splitlines() if not line.startswith("\t.")
    )
    assert re.search(must, code), code
    assert not re.search(must_not, code), code
