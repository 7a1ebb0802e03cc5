"""Target: what a program is compiled for. A value: frozen, hashable, equal when it means the same.

    Target("armv7a")                       any ARMv7-A board with NEON
    Target("raspberry-pi/4b-aarch64")      a board by name
    Target("llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon -device=arm_cpu")

The compiler asks a Target for everything about a machine: features, register width, options for
LLVM. The answers come from the tables of `features.py` and `cpus.py`, not from string rules.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, cast

from .errors import TargetError, suggest
from .features import REQUIRED
from .parse import FAST_MATH, read
from .resolve import SHORT_NAMES, features_of, resolve, takes_no_neon
from .triples import read_triple

Arch = Literal["aarch64", "arm", "x86_64"]

_BITS = {
    **dict.fromkeys(("bool", "int8", "uint8"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("float32", "int32", "uint32"), 32),
    **dict.fromkeys(("float64", "int64", "uint64"), 64),
}

# On 32-bit ARM, LLVM selects multiply-accumulate by lane only without these features (the Cortex-A9
# expands it again), and the default scheduler hoists loads until registers spill.
_ARM_HINTS = ("-slowfpvmlx", "-expand-fp-mlx", "+use-misched")

_stack: ContextVar[tuple[Target, ...]] = ContextVar("mlc_targets_stack", default=())


@dataclass(frozen=True, init=False, repr=False)
class Target:
    """A target, complete and checked; missing attributes have their defaults.

    spec: a string (a board, a short name, or `llvm -attribute=value ...`), JSON text, a mapping of
    attributes, or a Target. host: the target of the compiling machine, if needed.
    Raises TargetError, with what is wrong, where, and how to mend it.
    """

    kind: Literal["llvm", "c"]
    keys: tuple[str, ...]  # most specific first; select strategies
    device: str
    model: str  # the chip, or ""
    tag: str  # the board's name, or ""
    mtriple: str  # four parts
    mcpu: str
    mattr: tuple[str, ...]  # as asked for, sorted by name: "+neon"
    mfloat_abi: Literal["hard", "soft"]
    mabi: str
    num_cores: int  # 0: not known
    opt_level: int
    fast_math: tuple[str, ...]  # LLVM's flags
    host: Target | None

    def __init__(
        self,
        spec: str | Mapping[str, object] | Target,
        host: str | Mapping[str, object] | Target | None = None,
    ) -> None:
        if isinstance(spec, Target):
            values = {name: getattr(spec, name) for name in self.__dataclass_fields__}
        elif isinstance(spec, (str, Mapping)):
            values = _values(spec)
        else:
            raise TargetError(
                f"a target is text, a dict or a Target, not {type(spec).__name__}",
                "Target('armv7a')",
            )
        if host is not None:
            values["host"] = Target(host)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def arch(self) -> Arch:
        """The machine, by the name that the board's runtime uses."""
        return cast(Arch, read_triple(self.mtriple).family)

    @cached_property
    def features(self) -> frozenset[str]:
        """The features that code may use, by LLVM's names; see `features.VOCABULARY`."""
        return features_of(read_triple(self.mtriple), self.mcpu, self.mattr)

    def has(self, feature: str) -> bool:
        """Whether code may use `feature` (LLVM's name)."""
        return feature in self.features

    @property
    def required_features(self) -> tuple[str, ...]:
        """The features that an object must declare, so that boards without them refuse it;
        sorted."""
        return tuple(sorted(self.features & REQUIRED[self.arch]))

    @property
    def register_bits(self) -> int:
        """Width of the widest vector register of fixed size; 0 without one (no NEON), and for C,
        since the C compiler chooses vectors."""
        if self.kind == "c":
            return 0
        match self.arch:
            case "x86_64":
                return 512 if self.has("avx512f") else 256 if self.has("avx") else 128
            case _:
                return 128 if self.has("neon") else 0

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register; 1 if it is not computed in vectors.

        float16 counts by its size, even without float16 arithmetic ("fullfp16").
        """
        if dtype not in _BITS:
            raise TargetError(f"unknown dtype '{dtype}'", suggest(dtype, _BITS))
        bits = self.register_bits
        if self.arch == "arm" and dtype == "float64":
            return 1
        if self.arch == "x86_64" and "float" not in dtype:
            if bits == 512 and _BITS[dtype] < 32 and not self.has("avx512bw"):
                bits = 256
            if bits == 256 and not self.has("avx2"):
                bits = 128
        return max(1, bits // _BITS[dtype])

    @property
    def vector_registers(self) -> int:
        """How many registers of `register_bits` there are."""
        if self.kind == "c":
            return 0
        match self.arch:
            case "x86_64":
                return 32 if self.has("avx512f") else 16
            case "aarch64":
                return 32 if self.has("neon") else 0
            case "arm":
                return 16 if self.has("neon") else 0

    @property
    def float16(self) -> Literal["arithmetic", "storage", "software"]:
        """How float16 is computed: by its own instructions; as float32, converted by instructions;
        or as float32, converted by function calls, one number each."""
        computes = {"aarch64": "fullfp16", "x86_64": "avx512fp16"}
        converts = {"aarch64": "fp-armv8", "arm": "fp16", "x86_64": "f16c"}
        if self.kind == "c":
            return "software"
        if self.has(computes.get(self.arch, "")):
            return "arithmetic"
        return "storage" if self.has(converts[self.arch]) else "software"

    @property
    def pointer_bits(self) -> int:
        return 32 if self.arch == "arm" else 64

    @property
    def llvm_cpu(self) -> str:
        """LLVM's `-mcpu`."""
        return self.mcpu

    @property
    def llvm_features(self) -> str:
        """LLVM's `-mattr`: with this and `llvm_cpu`, LLVM uses exactly `features`.

        LLVM turns NEON on for any armv7a triple; here it is on only on request. Hints for code
        generation come last, except those that the user has set.
        """
        names = {m[1:] for m in self.mattr}
        optional = ("-d32", "-neon") if takes_no_neon(read_triple(self.mtriple), self.mcpu) else ()
        hints = (h for h in _ARM_HINTS if self.arch == "arm" and h[1:] not in names)
        return ",".join((*optional, *self.mattr, *hints))

    def tuned_for(self, cpu: str | None) -> dict[str, str]:
        """The attributes of an LLVM function that is scheduled for another CPU but has the features
        of this target.

        LLVM's 32-bit ARM has no such attribute. There the function's CPU is the other one, and its
        features are corrected to this target's.
        """
        if cpu is None:
            return {}
        if self.arch != "arm":
            return {"tune-cpu": cpu}
        other = features_of(read_triple(self.mtriple), cpu, ())
        names = {m[1:] for m in self.mattr}
        more = (f"+{name}" for name in sorted(self.features - other - names))
        less = (f"-{name}" for name in sorted(other - self.features - names))
        return {"target-cpu": cpu, "target-features": ",".join((*less, *more, self.llvm_features))}

    @property
    def short_name(self) -> str:
        """Its name in a table: the board, an equivalent short name, or the CPU."""
        if self.tag:
            return self.tag
        same = (name for name in SHORT_NAMES if Target(name) == self)
        return next(same, self.arch if self.mcpu == "generic" else self.mcpu)

    def to_dict(self) -> dict[str, Any]:
        """Attributes as JSON has them, defaults left out; `Target(t.to_dict()) == t`."""
        found: dict[str, Any] = {"kind": self.kind}
        for name in ("keys", "device", "model", "tag", "mtriple", "mcpu", "mattr", "mabi"):
            value = getattr(self, name)
            if value:
                found[name] = list(value) if isinstance(value, tuple) else value
        if self.arch == "arm":
            found["mfloat-abi"] = self.mfloat_abi
        if self.num_cores:
            found["num-cores"] = self.num_cores
        if self.opt_level != 3:
            found["opt-level"] = self.opt_level
        if self.fast_math == FAST_MATH:
            found["fast-math"] = True
        else:
            found.update({f"fast-math-{flag}": True for flag in self.fast_math})
        if self.host is not None:
            found["host"] = self.host.to_dict()
        return found

    def __str__(self) -> str:
        words: list[str] = [self.kind]
        for name, value in self.to_dict().items():
            match value:
                case True:
                    words.append(f"-{name}=1")
                case list():
                    words.append(f"-{name}={','.join(value)}")
                case dict():
                    words.append(shlex.quote(f"-{name}={self.host}"))
                case _ if name != "kind":
                    words.append(shlex.quote(f"-{name}={value}"))
        return " ".join(words)

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost `with target:`. Outside of any: None, or TargetError unless
        `allow_none`."""
        stack = _stack.get()
        if not stack and not allow_none:
            raise TargetError("no target is in scope", "with Target('armv7a'):")
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _stack.set(_stack.get()[:-1])


def _values(spec: str | Mapping[str, object]) -> dict[str, Any]:
    try:
        first, given = read(spec)
        host = given.pop("host", None)
        return {**resolve(first, given), "host": None if host is None else _host(host)}
    except TargetError as error:
        if error.where:
            raise
        text = spec if isinstance(spec, str) else json.dumps(dict(spec), default=repr)
        text = text.strip() if len(text) <= 200 else text.strip()[:197] + "..."
        raise TargetError(error.what, error.hint, where=text) from None


def _host(given: object) -> Target:
    if not isinstance(given, (str, Mapping, Target)):
        raise TargetError(f"host is {given!r}, not a target", "host='llvm'")
    return Target(given)
