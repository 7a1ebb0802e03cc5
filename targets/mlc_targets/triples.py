"""Target triples: read in the usual spellings, written as architecture-vendor-os-environment.

The environment says more on 32-bit ARM than elsewhere: `gnueabihf` passes floats in registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import TargetError, suggest

# Spellings of architectures, and their normal form. For a bare "arm" the CPU decides.
_ARCHITECTURES = {
    **dict.fromkeys(("aarch64", "arm64", "arm64e"), "aarch64"),
    **dict.fromkeys(("arm", "armhf"), "arm"),
    **dict.fromkeys(("armv7", "armv7a", "armv7-a", "armv7l", "armv7hl", "armv7ve"), "armv7a"),
    **dict.fromkeys(("armv8", "armv8a", "armv8-a", "armv8l"), "armv8a"),
    **dict.fromkeys(("x86_64", "x86-64", "amd64", "x64", "x86_64h"), "x86_64"),
}
_VENDORS = {"unknown", "none", "pc", "apple", "redhat", "suse", "alpine", "poky", "w64", "nvidia"}
_SYSTEMS = re.compile(r"(linux|android|none|elf)[\d.]*")
_OTHER_SYSTEMS = {
    "darwin": "macOS",
    "macos": "macOS",
    "ios": "iOS",
    "windows": "Windows",
    "freebsd": "FreeBSD",
    "netbsd": "NetBSD",
    "openbsd": "OpenBSD",
}
OLD_CPUS = r"(arm(7|8|9|1[01])|mpcore|pxa|sa11|strongarm|xscale|iwmmxt|ti925)"
# The refusal of a board, CPU or triple of ARMv6 and before, and the advice.
TOO_OLD = "is older than ARMv7, which the runtime needs"
FOR_TOO_OLD = "--target c --emit c, for a C program of your own"
_HARD = frozenset({"gnueabihf", "musleabihf", "eabihf"})
_SOFT = frozenset({"gnueabi", "musleabi", "eabi", "androideabi", "android"})
_OF_64_BITS = frozenset({"gnu", "musl", "android", "ohos", "elf", "unknown"})


@dataclass(frozen=True, slots=True)
class Triple:
    """A normalised triple; `arch` is "aarch64", "armv7a", "armv8a", "x86_64" or "arm"."""

    arch: str
    vendor: str
    system: str
    environment: str

    def __str__(self) -> str:
        return f"{self.arch}-{self.vendor}-{self.system}-{self.environment}"

    @property
    def family(self) -> str:
        """ "aarch64", "arm" (all 32-bit ARM) or "x86_64"."""
        return "arm" if self.arch.startswith("arm") else self.arch

    @property
    def hard_float(self) -> bool:
        """Whether floats are passed in floating-point registers; only 32-bit ARM has a choice."""
        return self.family != "arm" or self.environment in _HARD


def is_before_armv7(cpu: str) -> bool:
    """Whether a CPU's name, LLVM's or QEMU's, is one of 32-bit ARM before ARMv7."""
    return bool(re.match(OLD_CPUS, cpu))


def read_triple(text: str) -> Triple:
    """`text` in normal form. Raises TargetError that says what is not supported."""
    words = text.strip().split("-")
    for joined in ("-".join(words[:2]), words[0]):  # "x86-64" and "armv7-a" hold a dash
        if joined.lower() in _ARCHITECTURES:
            rest = [w.lower() for w in words[joined.count("-") + 1 :]]
            return _complete(text, _ARCHITECTURES[joined.lower()], rest)
    raise _unsupported(text, words[0].lower())


def _complete(text: str, arch: str, rest: list[str]) -> Triple:
    vendor = "unknown"
    if rest and (rest[0] in _VENDORS or len(rest) == 3) and not (rest == ["none"]):
        vendor, rest = rest[0], rest[1:]
        if vendor == "none":
            vendor = "unknown"
            # "arm-none-eabi": vendor left out, no operating system
            if rest and not _SYSTEMS.fullmatch(rest[0]):
                rest = ["none", *rest]
    if rest and rest[0].startswith("android"):  # "aarch64-android", "aarch64-linux-android21"
        rest = ["linux", *rest]
    rest = rest or ["linux"]
    other = next((n for prefix, n in _OTHER_SYSTEMS.items() if rest[0].startswith(prefix)), None)
    if other:
        raise TargetError(
            f"mtriple '{text}': boards run Linux, and no code is generated for {other}",
            f"{arch}-linux-{'gnueabihf' if arch.startswith('arm') else 'gnu'}",
        )
    if not _SYSTEMS.fullmatch(rest[0]) or len(rest) > 2:
        raise TargetError(
            f"mtriple '{text}': unknown operating system",
            f"{arch}-linux-{'gnueabihf' if arch.startswith('arm') else 'gnu'}",
        )
    system = {"elf": "none"}.get(rest[0], rest[0])
    environment = rest[1] if len(rest) == 2 else _environment(arch, system)
    plain = environment.rstrip("0123456789")  # "android21"
    if arch.startswith("arm") and plain not in _HARD | _SOFT:
        raise TargetError(
            f"mtriple '{text}': environment '{environment}' does not say how floats are passed",
            suggest(environment, _HARD | _SOFT),
        )
    if not arch.startswith("arm") and plain not in _OF_64_BITS:
        raise TargetError(
            f"mtriple '{text}': environment '{environment}' is not one of {arch}",
            suggest(environment, _OF_64_BITS),
        )
    return Triple(arch, vendor, system, environment)


def _environment(arch: str, system: str) -> str:
    if arch.startswith("arm"):
        return "gnueabihf" if system == "linux" else "eabihf"
    return {"linux": "gnu", "none": "elf"}.get(system, "unknown")


def _unsupported(text: str, arch: str) -> TargetError:
    known = set(_ARCHITECTURES)
    if re.fullmatch(r"armv[2-6]\w*", arch):
        return TargetError(f"mtriple '{text}' {TOO_OLD}", FOR_TOO_OLD)
    if re.fullmatch(r"(armeb|armv\d\w*b|thumbeb|aarch64_be|arm64_be)\w*", arch):
        return TargetError(
            f"mtriple '{text}': big-endian ARM is not supported",
            "aarch64-linux-gnu or armv7a-linux-gnueabihf",
        )
    if re.fullmatch(r"(arm|thumb)v[\d.]+(e?m|m\.(base|main))", arch):
        return TargetError(
            f"mtriple '{text}': M-profile (microcontroller) cores are not supported",
            "armv7a-linux-gnueabihf for a Cortex-A",
        )
    if arch.startswith("thumb"):
        return TargetError(
            f"mtriple '{text}': code is generated in ARM state, not Thumb",
            text.replace("thumb", "arm", 1),
        )
    if re.fullmatch(r"i[3-6]86|x86", arch):
        return TargetError(f"mtriple '{text}': 32-bit x86 is not supported", "x86_64-linux-gnu")
    return TargetError(
        f"mtriple '{text}': unknown architecture '{arch}'",
        suggest(arch, known) or "aarch64, armv7a or x86_64",
    )
