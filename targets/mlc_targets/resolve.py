"""Resolves attributes as written: looks names up, fills gaps, checks all.

Invalid targets are refused here. After this, every field has a value that LLVM and the boards know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .boards import board, board_names
from .cpus import CPUS, cpu_features
from .errors import TargetError, nearest, suggest
from .features import FLOOR, VOCABULARY, closure, closures, is_unused, without
from .host import host_attributes, host_triple
from .llvm_names import MATTR_NAMES
from .parse import FAST_MATH, KINDS, Value, read
from .triples import FOR_TOO_OLD, TOO_OLD, Triple, is_before_armv7, read_triple

SHORT_NAMES: Mapping[str, Mapping[str, Value]] = {
    "aarch64": {"mtriple": "aarch64-linux-gnu"},
    "armv8a": {"mtriple": "aarch64-linux-gnu"},
    "arm64": {"mtriple": "aarch64-linux-gnu"},
    "armv7a": {"mtriple": "armv7a-linux-gnueabihf", "mattr": ("+neon",)},
    "x86_64": {"mtriple": "x86_64-linux-gnu"},
    "x86-64": {"mtriple": "x86_64-linux-gnu"},
}

_FOR_C = "x86_64-linux-gnu"  # a fixed triple: C code does not depend on this machine
_ABIS = {
    "aarch64": ("aapcs", "darwinpcs"),
    "arm": ("aapcs", "aapcs-linux"),
    "x86_64": ("sysv",),
}
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


# Other names of features: the Linux kernel's and the manuals'.
_OTHER_NAMES = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "vfpv3": "vfp3",
    "vfpv3d16": "vfp3d16",
    "vfpv4": "vfp4",
    "idiva": "hwdiv-arm",
    "idivt": "hwdiv",
    "matmul-int8": "i8mm",
    "avx512_vnni": "avx512vnni",
    "avx_vnni": "avxvnni",
}


def resolve(first: str, given: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of a Target (all but its host), from its first word and the attributes as read."""
    kind, given = _look_up(first, given)
    mcpu = str(given.get("mcpu", "")).lower() or "generic"
    mtriple = given.get("mtriple") or (_FOR_C if kind == "c" else None)
    triple, mcpu = _machine(mtriple, mcpu)
    arch = triple.family
    mattr = _mattr(arch, _texts(given, "mattr"))
    features_of(triple, mcpu, mattr)
    device = _device(arch, str(given.get("device", "")))
    return {
        "kind": kind,
        "keys": _keys(kind, device, _texts(given, "keys")),
        "device": device,
        "model": str(given.get("model", "")),
        "tag": str(given.get("tag", "")),
        "mtriple": str(triple),
        "mcpu": mcpu,
        "mattr": mattr,
        "mfloat_abi": _float_abi(triple, str(given.get("mfloat-abi", ""))),
        "mabi": _one_of("mabi", str(given.get("mabi", "")), _ABIS[arch]),
        "num_cores": _within("num-cores", given.get("num-cores"), 1, 1024, 0),
        "opt_level": _within("opt-level", given.get("opt-level"), 0, 3, 3),
        "fast_math": _fast_math(given),
    }


def features_of(triple: Triple, mcpu: str, mattr: tuple[str, ...]) -> frozenset[str]:
    """The features that code may use. Raises TargetError if the parts contradict each other."""
    arch = triple.family
    added = {m[1:] for m in mattr if m[0] == "+"}
    removed = {m[1:] for m in mattr if m[0] == "-"}
    base = _base(triple, mcpu)
    features = without(arch, base | (closures(arch, added) & VOCABULARY[arch]), removed)
    if FLOOR[arch] not in features:
        culprit = next((r for r in sorted(removed) if r in closure(arch, FLOOR[arch])), FLOOR[arch])
        raise TargetError(
            f"mattr '-{culprit}' leaves no floating point, which every kernel needs",
            f"leave '-{culprit}' out",
        )
    return features


def takes_no_neon(triple: Triple, mcpu: str) -> bool:
    """Whether NEON is used only on request: generic ARMv7-A, since some chips lack it."""
    return triple.arch == "armv7a" and mcpu == "generic"


def _base(triple: Triple, mcpu: str) -> frozenset[str]:
    if takes_no_neon(triple, mcpu):
        return without("arm", cpu_features("arm", "generic"), ("neon", "d32"))
    if triple.arch == "armv8a" and mcpu == "generic":
        return cpu_features("arm", "cortex-a53")
    return cpu_features(triple.family, mcpu)


_TAGS: dict[str, tuple[str, Mapping[str, Value]]] = {}  # registered by users, by name


def register_tag(name: str, target: str | Mapping[str, object]) -> None:
    """Gives a target a name, which can be used like a board's name.

    Raises TargetError for a bad target, and for a name that is taken.
    """
    word = name.lower()
    if not _WORD.fullmatch(word.replace("/", "_")):
        raise TargetError(f"'{name}' is not a name for a target", "letters, digits, . _ - and /")
    if word in {*KINDS, "host", *SHORT_NAMES, *board_names(), *_TAGS}:
        raise TargetError(f"'{name}' is the name of a target already", "another name")
    kind, given = _look_up(*read(target))
    resolve(kind, given)
    _TAGS[word] = kind, {**given, "tag": name}


def _look_up(first: str, given: Mapping[str, Value]) -> tuple[str, Mapping[str, Value]]:
    """The kind, and the attributes with those of a board or a short name filled in."""
    name = first.lower()
    base: Mapping[str, Value]
    if name in KINDS:
        return name, given
    kind = "llvm"
    if name in _TAGS:
        kind, base = _TAGS[name]
    elif name == "host":
        base = host_attributes()
    elif name in SHORT_NAMES:
        base = SHORT_NAMES[name]
    elif name in board_names():
        b = board(name)
        base = {
            "tag": b.name,
            "model": b.model,
            "mtriple": b.mtriple,
            "mcpu": b.mcpu,
            "mattr": b.mattr,
            "num-cores": b.num_cores,
        }
    else:
        raise _unknown(first)
    said = {m[1:] for m in _texts(given, "mattr")}
    kept = tuple(m for m in _texts(base, "mattr") if m[1:] not in said)
    return kind, {**base, **given, "mattr": kept + _texts(given, "mattr")}


def _unknown(name: str) -> TargetError:
    for arch, cpus in CPUS.items():
        if name in cpus:
            example = f"llvm -mtriple={_EXAMPLE[arch]} -mcpu={name}"
            return TargetError(f"'{name}' is a CPU, not a target", example)
    if name in _ARMV6:
        return TargetError(f"{name} {TOO_OLD}", FOR_TOO_OLD)
    try:
        read_triple(name)
    except TargetError as error:
        if name.count("-") >= 2 and "/" not in name:  # it looks like a triple: say what is wrong
            return error
        names = {*KINDS, "host", *SHORT_NAMES, *board_names(), *_TAGS}
        near = suggest(name.lower(), names)
        listed = f"{', '.join((*SHORT_NAMES, 'host'))}, or llvm -mtriple=... -mcpu=..."
        return TargetError(f"unknown target or board '{name}'", near or listed)
    return TargetError(f"'{name}' is a triple, not a target", f"llvm -mtriple={name}")


# Well-known names of boards and architectures that are refused with the reason.
_ARMV6 = frozenset({"armv6", "armv6l", "raspberry-pi/zero", "raspberry-pi/1b", "rasp1b"})

# The optional features that kernels make use of.
_USED = {"aarch64": "neon, fullfp16, dotprod and i8mm", "arm": "neon, vfp4, fp16 and dotprod"}

_EXAMPLE = {
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "x86_64": "x86_64-linux-gnu",
}


def _machine(mtriple: Value, mcpu: str) -> tuple[Triple, str]:
    """The triple and CPU, each completed from the other."""
    triple = read_triple(str(mtriple)) if mtriple else read_triple(host_triple())
    arch = triple.family
    if mcpu == "generic" and arch == "x86_64":
        mcpu = "x86-64"
    if mcpu not in CPUS[arch]:
        raise _unknown_cpu(arch, mcpu, from_host=not mtriple)
    if arch == "arm":
        if triple.arch == "arm":
            triple = replace(triple, arch="armv7a")
        is_armv8 = mcpu == "generic" or "v8" in cpu_features("arm", mcpu)
        if triple.arch == "armv8a" and not is_armv8:
            raise TargetError(
                f"mcpu '{mcpu}' is not of the triple's architecture, armv8a",
                f"-mtriple={replace(triple, arch='armv7a')}",
            )
    return triple, mcpu


def _unknown_cpu(arch: str, mcpu: str, from_host: bool) -> TargetError:
    if mcpu == "native":
        return TargetError("mcpu 'native' is not the name of a CPU", "the target 'host'")
    if re.match(r"(cortex-[mr]\d|sc[03]00)", mcpu):
        return TargetError(
            f"mcpu '{mcpu}': M- and R-profile (microcontroller) cores are not supported",
            f"{FOR_TOO_OLD}; or a Cortex-A core: " + suggest("cortex-a", CPUS["arm"]),
        )
    if arch == "arm" and is_before_armv7(mcpu):
        return TargetError(f"mcpu '{mcpu}' {TOO_OLD}", FOR_TOO_OLD)
    elsewhere = [other for other in CPUS if mcpu in CPUS[other]]
    if elsewhere:
        origin = " (this host's, since no mtriple is given)" if from_host else ""
        return TargetError(
            f"mcpu '{mcpu}' is a CPU of {' and '.join(elsewhere)}, not of {arch}{origin}",
            " or ".join(f"-mtriple={_EXAMPLE[other]}" for other in elsewhere),
        )
    near = suggest(mcpu, CPUS[arch]) or "leave it out, for any CPU of that architecture"
    return TargetError(f"unknown mcpu '{mcpu}' for {arch}", near)


def _mattr(arch: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """`given` checked and in normal order, by name; each name once."""
    signs: dict[str, str] = {}
    for item in given:
        sign, name = item[:1], item[1:]
        if sign not in ("+", "-"):
            raise TargetError(f"mattr '{item}' has no sign", f"+{item} or -{item}")
        if name not in MATTR_NAMES[arch]:
            raise _unknown_feature(arch, item)
        if sign == "+" and is_unused(name) and arch != "x86_64":
            raise TargetError(
                f"mattr '{item}': no kernel uses it, so that it would change nothing but which "
                "boards take the object",
                f"leave '{item}' out; kernels use {_USED[arch]}",
            )
        if signs.setdefault(name, sign) != sign:
            raise TargetError(f"mattr has both '+{name}' and '-{name}'", "one of the two")
        if sign == "-" and (re.match(r"v\d", name) or (arch == "arm" and name == "thumb2")):
            raise TargetError(
                f"mattr '-{name}': a feature of the architecture itself cannot be removed",
                "an -mcpu of the architecture that is meant",
            )
    for name, sign in signs.items():
        gone = sorted(f for f in closure(arch, name) if signs.get(f) == "-")
        if sign == "+" and gone:
            raise TargetError(
                f"mattr '+{name}' needs '{gone[0]}', which '-{gone[0]}' removes",
                f"leave '+{name}' or '-{gone[0]}' out",
            )
    return tuple(signs[name] + name for name in sorted(signs))


def _unknown_feature(arch: str, item: str) -> TargetError:
    sign, name = item[0], item[1:]
    if name == "soft-float":
        return TargetError(
            f"mattr '{item}': kernels always use the floating-point unit",
            "-mfloat-abi=soft, which only says how floats are passed, or leave it out",
        )
    elsewhere = [other for other in MATTR_NAMES if name in MATTR_NAMES[other]]
    if name.lower() in _OTHER_NAMES and _OTHER_NAMES[name.lower()] in MATTR_NAMES[arch]:
        hint = sign + _OTHER_NAMES[name.lower()]
    else:
        hint = " or ".join(sign + n for n in nearest(name, MATTR_NAMES[arch]))
    if elsewhere:
        whose = " and ".join(elsewhere)
        what = f"mattr '{item}' is a feature of {whose}, not of {arch}"
    else:
        what = f"unknown mattr '{item}' for {arch}"
    return TargetError(what, hint or f"leave '{item}' out")


def _device(arch: str, given: str) -> str:
    devices = ("cpu",) if arch == "x86_64" else ("arm_cpu", "cpu")
    if given == "arm_cpu" and arch == "x86_64":
        raise TargetError(
            "device 'arm_cpu' is not of the triple's architecture, x86_64",
            "-mtriple=aarch64-linux-gnu or -mtriple=armv7a-linux-gnueabihf",
        )
    return _one_of("device", given, devices) or devices[0]


def _keys(kind: str, device: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """The given keys; then, unless they include a general one, the device's. C code has only "cpu",
    so that it does not depend on the machine."""
    own = _words("keys", given)
    named = device in own or "cpu" in own
    general = ("cpu",) if named or kind == "c" else (device, "cpu")
    return tuple(dict.fromkeys((*(key for key in own if key != "cpu"), *general)))


def _float_abi(triple: Triple, given: str) -> str:
    fits = "hard" if triple.hard_float else "soft"
    if _one_of("mfloat-abi", given, ("hard", "soft")) in ("", fits):
        return fits
    if triple.family != "arm":
        raise TargetError(f"mfloat-abi '{given}': {triple.family} has only the hard one", "hard")
    other = triple.environment.removesuffix("hf") + ("" if triple.hard_float else "hf")
    known = other in ("gnueabi", "musleabi", "eabi", "gnueabihf", "musleabihf", "eabihf")
    raise TargetError(
        f"mfloat-abi '{given}' contradicts the triple, whose environment '{triple.environment}' "
        f"means {fits}",
        f"-mtriple={replace(triple, environment=other)}" if known else f"-mfloat-abi={fits}",
    )


def _fast_math(given: Mapping[str, Value]) -> tuple[str, ...]:
    every = bool(given.get("fast-math", False))
    return tuple(flag for flag in FAST_MATH if given.get(f"fast-math-{flag}", every))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value and value not in allowed:
        raise TargetError(f"unknown {name} '{value}'", suggest(value, allowed))
    return value


def _within(name: str, value: Value, low: int, high: int, default: int) -> int:
    if value is None:
        return default
    assert isinstance(value, int)
    if not low <= value <= high:
        closest = min(max(value, low), high)
        raise TargetError(f"{name} is {value}, not within {low}..{high}", f"-{name}={closest}")
    return value


def _words(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _WORD.fullmatch(value):
            raise TargetError(f"{name}: '{value}' is not a name", "letters, digits, '_', '.', '-'")
    return values


def _texts(given: Mapping[str, Value], name: str) -> tuple[str, ...]:
    value = given.get(name, ())
    assert isinstance(value, tuple)
    return value
