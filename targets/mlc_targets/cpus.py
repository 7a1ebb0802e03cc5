"""LLVM's CPUs and their features: a base (an architecture level, or another CPU) and additions.

tests/targets/test_llvm.py compares the tables with LLVM. Left out: 32-bit ARM before ARMv7 or of
other profiles (M, R), and x86 CPUs with extensions that no board reports (APX, FMA4, XOP).
"""

from __future__ import annotations

from functools import cache

from .features import VOCABULARY, closures

_AARCH64 = {
    "apple-a7 apple-a8 apple-a9 cyclone generic": "neon",
    "cortex-a34 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73": "neon crc",
    "exynos-m3 kryo thunderx thunderxt81 thunderxt83 thunderxt88": "neon crc",
    "apple-a10 falkor": "crc rdm",
    "thunderx2t99": "v8.1a",
    "a64fx": "v8.2a complxnum sve",
    "tsv110": "v8.2a fp16fml dotprod complxnum jsconv",
    "apple-a11 carmel": "v8.2a fullfp16",
    "exynos-m4 exynos-m5": "v8.2a fullfp16 dotprod",
    "cortex-a55 cortex-a65 cortex-a65ae cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78"
    " cortex-a78ae cortex-x1 neoverse-e1 neoverse-n1": "v8.2a fullfp16 dotprod rcpc",
    "cortex-a78c": "cortex-a78 flagm",
    "cortex-x1c": "cortex-x1 rcpc-immo flagm lse2",
    "thunderx3t110": "v8.3a",
    "apple-a12 apple-s4 apple-s5": "v8.3a fullfp16",
    "saphira": "v8.4a",
    "neoverse-512tvb neoverse-v1": "v8.4a fp16fml i8mm bf16 sha3 sve",
    "apple-a13 apple-s6 apple-s7 apple-s8": "v8.4a fp16fml sha3",
    "apple-a14 apple-m1": "v8.5a fp16fml sha3",
    "apple-a15 apple-a16 apple-a17 apple-m2 apple-m3 apple-s10 apple-s9": "v8.6a fp16fml sha3",
    "oryon-1": "v8.6a fp16fml sha3",
    "apple-a18 apple-m4": "v8.6a fp16fml sha3 sme2",
    "apple-a19 apple-m5": "apple-m4 cssc hbc",
    "ampere1 ampere1a": "v8.6a fullfp16 sha3",
    "ampere1b": "ampere1a cssc",
    "ampere1c": "ampere1b fp16fml sve2 faminmax lut fp8",
    "cortex-a320 cortex-a510 cortex-a520 cortex-a520ae cortex-a710 cortex-a715 cortex-a720"
    " cortex-a720ae cortex-a725 cortex-x2 cortex-x3 cortex-x4 cortex-x925 cobalt-100 neoverse-n2"
    " neoverse-n3 neoverse-v2 neoverse-v3 neoverse-v3ae": "v9.1a fp16fml sve2 sve-bitperm",
    "gb10 grace": "neoverse-v2 sha3",
    "olympus": "neoverse-v2 sha3 faminmax lut fp8",
    "fujitsu-monaka": "v9.3a fp16fml sha3 sve2 sve-bitperm faminmax lut fp8",
    "c1-nano c1-premium c1-pro c1-ultra": "v9.3a fp16fml sve2 sve-bitperm sme2",
}

# In 32-bit state. "generic" is any ARMv7-A with NEON, LLVM's default for that triple.
_ARM = {
    "cortex-a8 generic": "v7 dsp neon",
    "cortex-a9": "cortex-a8 mp fp16",
    "cortex-a5": "cortex-a8 mp vfp4",
    "krait": "cortex-a8 vfp4 hwdiv hwdiv-arm",
    "cortex-a7 cortex-a12 cortex-a15 cortex-a17 swift": "krait mp",
    "cortex-a32 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73 cyclone exynos-m3 kryo": (
        "cortex-a7 v8 fp-armv8 crc"
    ),
    "cortex-a55 cortex-a75 neoverse-n1": "cortex-a53 dotprod",
    "cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c cortex-x1 cortex-x1c"
    " exynos-m4 exynos-m5": "cortex-a55 fullfp16",
    "cortex-a510 cortex-a710 neoverse-n2": "cortex-a55 fp16fml i8mm bf16",
    "neoverse-v1": "cortex-a76 i8mm bf16",
}

_X86_64 = {
    "x86-64 athlon64 k8 opteron": "sse2",
    "athlon64-sse3 k8-sse3 nocona opteron-sse3": "sse3",
    "core2": "ssse3",
    "penryn": "sse4.1",
    "bonnell": "ssse3 movbe",
    "x86-64-v2 nehalem corei7 westmere": "sse4.2 popcnt",
    "silvermont slm goldmont goldmont-plus": "nehalem movbe",
    "tremont": "silvermont gfni",
    "sandybridge corei7-avx": "nehalem avx",
    "ivybridge core-avx-i": "sandybridge f16c",
    "btver2": "ivybridge bmi lzcnt movbe",
    "x86-64-v3 haswell core-avx2 broadwell skylake znver1 znver2 znver3": (
        "nehalem avx2 f16c fma bmi bmi2 lzcnt movbe"
    ),
    "alderlake gracemont meteorlake raptorlake": "haswell gfni avxvnni",
    "arrowlake grandridge sierraforest": "alderlake avxvnniint8 avxifma avxneconvert",
    "arrowlake-s clearwaterforest lunarlake pantherlake": "arrowlake avxvnniint16",
    "knl": "haswell avx512cd",
    "knm": "knl avx512vpopcntdq",
    "x86-64-v4 skylake-avx512 skx": "haswell avx512cd avx512bw avx512dq avx512vl",
    "cannonlake": "skylake-avx512 avx512ifma avx512vbmi",
    "cascadelake": "skylake-avx512 avx512vnni",
    "cooperlake": "cascadelake avx512bf16",
    "icelake-client icelake-server rocketlake tigerlake": (
        "cannonlake gfni avx512vnni avx512vbmi2 avx512bitalg avx512vpopcntdq"
    ),
    "znver4": "icelake-client avx512bf16",
    "znver5": "znver4 avxvnni",
    "sapphirerapids emeraldrapids graniterapids graniterapids-d": (
        "znver5 avx512fp16 amx-int8 amx-bf16"
    ),
}


def _one_by_one(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {cpu: tuple(has.split()) for cpus, has in table.items() for cpu in cpus.split()}


CPUS: dict[str, dict[str, tuple[str, ...]]] = {
    "aarch64": _one_by_one(_AARCH64),
    "arm": _one_by_one(_ARM),
    "x86_64": _one_by_one(_X86_64),
}


@cache
def cpu_features(arch: str, cpu: str) -> frozenset[str]:
    """The features of VOCABULARY that `cpu` has on `arch`. Raises KeyError for an unknown CPU."""
    table = CPUS[arch]
    bases = [name for name in table[cpu] if name in table]
    plain = [name for name in table[cpu] if name not in table]
    inherited = [cpu_features(arch, base) for base in bases]
    return (closures(arch, plain) & VOCABULARY[arch]).union(*inherited)
