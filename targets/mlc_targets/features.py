"""CPU features by LLVM's names: which imply which, and which a board must have.

tests/targets/test_llvm.py compares the tables with LLVM: every name, every implication, and every
feature of every CPU of `cpus.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

# A feature and its direct implications. A name that is not a key implies nothing of interest here,
# or is not a name of LLVM's (see `llvm_names`).
AARCH64 = {
    # ISA extensions
    "neon": "fp-armv8",
    "rdm": "neon",
    "fullfp16": "fp-armv8",
    "fp16fml": "neon fullfp16",
    "dotprod": "neon",
    "i8mm": "neon",
    "bf16": "neon",
    "f32mm": "sve",
    "f64mm": "sve",
    "complxnum": "neon",
    "jsconv": "fp-armv8",
    "rcpc-immo": "rcpc",
    "fptoint": "fp-armv8",
    "altnzcv": "flagm",
    "aes": "neon",
    "sha2": "neon",
    "sha3": "sha2",
    "sm4": "neon",
    "sve": "fullfp16",
    "sve2": "sve",
    "sve2p1": "sve2",
    "sme": "fullfp16 bf16",
    "sme2": "sme",
    "faminmax": "neon",
    "lut": "neon",
    "fp8": "neon",
    "crypto": "sha2",
    "d128": "lse",
    "f16f32dot": "neon fullfp16",
    "f16f32mm": "neon fullfp16",
    "f16mm": "fullfp16",
    "f8f16mm": "fp8",
    "f8f32mm": "fp8",
    "fp8dot2": "fp8",
    "fp8dot4": "fp8",
    "fp8fma": "fp8",
    "fprcvt": "fp-armv8",
    "lse128": "lse",
    "lsfe": "fp-armv8",
    "mops-go": "mops",
    "rcpc3": "rcpc-immo",
    "sme-b16b16": "sme2",
    "sme-f16f16": "sme2",
    "sme-f64f64": "sme",
    "sme-f8f16": "sme2 fp8",
    "sme-f8f32": "sme2 fp8",
    "sme-fa64": "sve2 sme",
    "sme-i16i64": "sme",
    "sme-lutv2": "sme2",
    "sme-mop4": "sme2",
    "sme-tmop": "sme2",
    "sme2p1": "sme2",
    "sme2p2": "sme2",
    "sme2p3": "sme2",
    "ssve-aes": "sme2",
    "ssve-bitperm": "sve-bitperm sme2",
    "ssve-fexpa": "sme2",
    "ssve-fp8dot2": "sme2 fp8",
    "ssve-fp8dot4": "sme2 fp8",
    "ssve-fp8fma": "sme2 fp8",
    "sve-aes": "neon",
    "sve-b16mm": "sve",
    "sve-f16f32mm": "sve",
    "sve-sha3": "sha3",
    "sve-sm4": "neon",
    "sve2-aes": "neon sve2",
    "sve2-bitperm": "sve2 sve-bitperm",
    "sve2-sha3": "sha3 sve2",
    "sve2-sm4": "neon sve2",
    "sve2p2": "sve2p1",
    "sve2p3": "sve2p1",
    # architecture levels
    "v8.1a": "crc lse rdm",
    "v8.2a": "v8.1a",
    "v8.3a": "v8.2a complxnum jsconv rcpc",
    "v8.4a": "v8.3a dotprod rcpc-immo flagm lse2",
    "v8.5a": "v8.4a fptoint altnzcv",
    "v8.6a": "v8.5a i8mm bf16",
    "v8.7a": "v8.6a",
    "v8.8a": "v8.7a mops hbc",
    "v8.9a": "v8.8a cssc",
    "v9a": "v8.5a",
    "v9.1a": "v8.6a",
    "v9.2a": "v8.7a",
    "v9.3a": "v8.8a",
    "v9.4a": "v8.9a",
    "v9.5a": "v9.4a",
    "v9.6a": "v9.5a",
    "v9.7a": "v9.6a sve2p1",
}

ARM = {
    # floating point and NEON: d16 means only sixteen double registers
    "vfp2": "fp64",
    "vfp3d16": "vfp2",
    "vfp3": "vfp3d16 d32",
    "vfp4d16": "vfp3d16 fp16",
    "vfp4": "vfp3 vfp4d16",
    "fp-armv8d16": "vfp4d16",
    "fp-armv8": "vfp4 fp-armv8d16",
    "neon": "vfp3",
    "fullfp16": "fp16",
    "fp16fml": "fullfp16",
    "dotprod": "neon",
    "i8mm": "neon",
    "bf16": "neon",
    "aes": "neon",
    "sha2": "neon",
    "crypto": "sha2",
    "virtualization": "hwdiv hwdiv-arm",
    # architecture levels
    "v6k": "v6",
    "v6t2": "v6k thumb2",
    "v7": "v6t2",
    "v8": "v7 acquire-release perfmon",
    "v8.1a": "v8",
    "v8.2a": "v8.1a",
    "v8.3a": "v8.2a",
    "v8.4a": "v8.3a dotprod",
    "v8.5a": "v8.4a",
    "v8.6a": "v8.5a i8mm bf16",
    "v8.7a": "v8.6a",
    "v8.8a": "v8.7a",
    "v8.9a": "v8.8a",
    "v9a": "v8.5a",
    "v9.1a": "v8.6a",
    "v9.2a": "v8.7a",
    "v9.3a": "v8.8a",
    "v9.4a": "v8.9a",
    "v9.5a": "v9.4a",
    "v9.6a": "v9.5a",
    "v9.7a": "v9.6a",
}

_AVX10 = (
    "avx512cd avx512dq avx512vl avx512vnni avx512ifma avx512vbmi avx512vbmi2 avx512bitalg"
    " avx512vpopcntdq avx512bf16 avx512fp16"
)

X86_64 = {
    "sse3": "sse2",
    "ssse3": "sse3",
    "sse4.1": "ssse3",
    "sse4.2": "sse4.1",
    "avx": "sse4.2",
    "avx2": "avx",
    "f16c": "avx",
    "fma": "avx",
    "aes": "sse2",
    "pclmul": "sse2",
    "gfni": "sse2",
    "avx512f": "avx2 f16c fma",
    "avx512cd": "avx512f",
    "avx512bw": "avx512f",
    "avx512dq": "avx512f",
    "avx512vl": "avx512f",
    "avx512vnni": "avx512f",
    "avx512ifma": "avx512f",
    "avx512vbmi": "avx512bw",
    "avx512vbmi2": "avx512bw",
    "avx512bitalg": "avx512bw",
    "avx512vpopcntdq": "avx512f",
    "avx512bf16": "avx512bw",
    "avx512fp16": "avx512bw",
    "avxvnni": "avx2",
    "avxvnniint8": "avx2",
    "avxvnniint16": "avx2",
    "avxifma": "avx2",
    "avxneconvert": "avx2",
    "amx-int8": "amx-tile",
    "amx-bf16": "amx-tile",
    "vaes": "avx2",
    "vpclmulqdq": "avx",
    "amx-avx512": "amx-tile",
    "amx-complex": "amx-tile",
    "amx-fp16": "amx-tile",
    "amx-fp8": "amx-tile",
    "amx-movrs": "amx-tile",
    "amx-tf32": "amx-tile",
    **dict.fromkeys(("avx10.1", "avx10.1-512", "avx10.2", "avx10.2-512"), _AVX10),
    "avx512vp2intersect": "avx512f",
    "fma4": "avx",
    "kl": "sse2",
    "sha": "sse2",
    "sha512": "avx2",
    "sm3": "avx",
    "sm4": "avx2",
    "sse4a": "sse3",
    "widekl": "sse2",
    "xop": "avx",
    "sse2": "sse",
}

IMPLIES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"aarch64": AARCH64, "arm": ARM, "x86_64": X86_64}
)

# The features that generated code may use; a Target's `features` are of these.
VOCABULARY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "aarch64": frozenset(
            "fp-armv8 neon crc lse rdm fullfp16 fp16fml dotprod i8mm bf16 f32mm f64mm complxnum"
            " jsconv rcpc rcpc-immo fptoint flagm altnzcv lse2 sha3 sve sve2 sve2p1 sve-bitperm sme"
            " sme2 mops cssc hbc faminmax lut fp8".split()
        ),
        "arm": frozenset(
            "v6 v6k v6t2 v7 v8 thumb2 dsp mp vfp2 vfp3d16 vfp3 vfp4d16 vfp4 fp-armv8d16 fp-armv8"
            " fp64 d32 fp16 neon fullfp16 fp16fml dotprod i8mm bf16 crc hwdiv hwdiv-arm".split()
        ),
        "x86_64": frozenset(
            "sse sse2 sse3 ssse3 sse4.1 sse4.2 popcnt avx avx2 f16c fma bmi bmi2 lzcnt movbe gfni"
            " avx512f avx512cd avx512bw avx512dq avx512vl avx512vnni avx512ifma avx512vbmi"
            " avx512vbmi2 avx512bitalg avx512vpopcntdq avx512bf16 avx512fp16 avxvnni avxvnniint8"
            " avxvnniint16 avxifma avxneconvert amx-tile amx-int8 amx-bf16".split()
        ),
    }
)

# The features that the code generator and LLVM really use. An object names those that it was
# compiled for, and a board without them refuses it. Only atomics, system code or intrinsics use the
# rest of the vocabulary, and no kernel has these.
REQUIRED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "aarch64": frozenset(
            "fp-armv8 neon rdm fullfp16 fp16fml dotprod i8mm bf16 f32mm f64mm complxnum sha3 sve"
            " sve2 sve2p1 sve-bitperm mops cssc faminmax".split()
        ),
        "arm": frozenset(
            "v8 vfp2 vfp3d16 vfp3 vfp4d16 vfp4 fp-armv8 d32 neon fullfp16 fp16fml dotprod i8mm"
            " bf16 hwdiv hwdiv-arm".split()
        ),
        "x86_64": VOCABULARY["x86_64"] - {"sse", "amx-tile", "amx-int8", "amx-bf16"},
    }
)


def is_unused(feature: str) -> bool:
    """Whether kernels make no use of an ARM feature: vectors of variable length, matrices in their
    own registers, bfloat16, and products of float16 added to float32. A CPU may have it; a target
    may not ask for it."""
    return feature.startswith(("sve", "sme", "ssve")) or feature in UNUSED


UNUSED = frozenset({"bf16", "fp16fml", "f32mm", "f64mm"})

# The feature that floating point, and so every kernel, needs.
FLOOR: Mapping[str, str] = MappingProxyType(
    {"aarch64": "fp-armv8", "arm": "vfp2", "x86_64": "sse2"}
)


@cache
def closure(arch: str, feature: str) -> frozenset[str]:
    """`feature` and everything that it implies on `arch`."""
    direct = IMPLIES[arch].get(feature, "").split()
    return frozenset({feature}).union(*(closure(arch, f) for f in direct))


def closures(arch: str, features: Iterable[str]) -> frozenset[str]:
    """`features` and everything that they imply on `arch`."""
    return frozenset().union(*(closure(arch, f) for f in features))


def without(arch: str, features: Iterable[str], removed: Iterable[str]) -> frozenset[str]:
    """`features` without `removed` and without everything that implies one of `removed`."""
    gone = frozenset(removed)
    return frozenset(f for f in features if not closure(arch, f) & gone)


def roots(arch: str, features: Iterable[str]) -> tuple[str, ...]:
    """The fewest of `features` from which the others follow, sorted."""
    every = frozenset(features)
    implied = frozenset().union(*(closure(arch, f) - {f} for f in every))
    return tuple(sorted(every - implied))
