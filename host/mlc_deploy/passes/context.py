"""The choice of passes, their options and instruments: one context for graph and loop passes.

    with mlc.PassContext(opt_level=1, disabled_pass=["unroll_loops"], instruments=[timing]):
        lib = mlc.build(func, target=target)

A pass is a plain function from program to program, known by its name. The decorators `optional` and
`required` decide whether it may be left out. A pipeline is a tuple of passes and names of phases.
Passes of the user run at the phases.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from ..errors import PassError
from .instruments import Instrument, PrintInstrument

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")

ALWAYS = -1
LEVELS: dict[str, int] = {}  # pass -> the lowest opt_level at which it runs; ALWAYS: it must run
LEVEL, MOST_LEVEL = 2, 4

# Phases, where passes of the user may run. TVM's users refer to phases of lowering by number.
PHASES: Mapping[str, tuple[str, ...]] = {
    "graph": ("imported", "optimized"),
    "lower": ("blocks", "loops", "flat", "final"),
}

# Copies of one statement. With more, a kernel takes seconds to compile, and its loops do not fit
# into a core's cache of decoded instructions. The largest tile of any schedule here makes 768.
MOST_COPIES = 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """How far packing, which saves instructions, may grow a model's weights: by this share of them,
    and by `spare` bytes whatever their share."""

    share: float
    spare: int = 0

    def most(self, weights: int) -> float:
        """The bytes by which so many bytes of weights may grow."""
        return max(self.share * weights, self.spare)


SPARE = 1 << 20  # bytes: a Cortex-A72's second-level cache, and little memory on any board
MEMORY: Mapping[str, Growth] = {
    "small": Growth(0.1), "balanced": Growth(0.5, SPARE), "fast": Growth(math.inf),
}  # fmt: skip

OPTIONS: Mapping[str, Any] = {  # option -> default
    "compile.cache": True,  # kernels compiled before come from the user's cache
    "compile.share": True,  # kernels alike but for sizes, operands or an addition share code
    "compile.workers": 0,  # processes that compile a model's kernels; 0: one per core
    "graph.add_pass": (),  # [(phase, function)]: passes of the user
    "graph.dump": "",  # "all" or "name,name": passes whose result is printed, as with MLC_DUMP
    "graph.memory": "balanced",  # how much weights may grow for speed (MEMORY)
    "graph.layouts": {},  # layer -> "NCHW", "NCHW4c": the layout of a direct convolution
    "lower.add_pass": (),
    "lower.dump": "",
    "lower.bound_check": False,  # every access is checked; the kernel returns MLC_OUT_OF_BOUNDS
    "lower.unroll_limit": MOST_COPIES,  # most copies that schedules make and lowering accepts
    "lower.auto_unroll": 64,  # most copies when loops over registers are unrolled by default
}


def optional(level: int) -> Callable[[F], F]:
    """Marks a pass that runs at this opt_level and above, unless it is disabled."""

    def mark(function: F) -> F:
        LEVELS[function.__name__] = level
        return function

    return mark


def declare_switch(name: str, level: int) -> None:
    """Declares a part of a pass that contexts can switch by its own name, like a pass."""
    LEVELS[name] = level


def required(function: F) -> F:
    """Marks a pass that must run: without it, compilation fails or gives a wrong program."""
    LEVELS[function.__name__] = ALWAYS
    return function


@dataclass(frozen=True)
class PassContext:
    """Settings for the passes that run in its `with`, in this thread. Only the innermost context
    applies: it inherits nothing from contexts around it.

    opt_level: 0 (only required passes) to 4 (also approximations). A pass runs at its level and
    above. disabled_pass and required_pass: names of passes to leave out, or to run at any level.
    config: options of passes by name (OPTIONS). instruments: objects with the methods of
    `Instrument`. Raises PassError for unknown names and values, and for disabling a required pass.
    """

    opt_level: int = LEVEL
    disabled_pass: Sequence[str] = ()
    required_pass: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    instruments: Sequence[Instrument] = ()

    def __post_init__(self) -> None:
        if isinstance(self.opt_level, bool) or self.opt_level not in range(MOST_LEVEL + 1):
            raise PassError(f"opt_level {self.opt_level!r}", mend=f"0 to {MOST_LEVEL}")
        for argument in ("disabled_pass", "required_pass"):
            names = getattr(self, argument)
            if isinstance(names, str):
                raise PassError(f"{argument} is one name", mend=f'{argument}=["{names}"]')
            for name in names:
                if name not in LEVELS:
                    raise PassError(f"{argument}: no pass '{name}'", mend=_nearest(name, LEVELS))
        for name in self.disabled_pass:
            if LEVELS[name] == ALWAYS:
                raise PassError(f"disabled_pass: nothing can be compiled without pass '{name}'")
            if name in self.required_pass:
                raise PassError(f"pass '{name}' is both disabled and required")
        for option, value in self.config.items():
            _check_option(option, value)

    @staticmethod
    def current() -> PassContext:
        """The innermost context of this thread, or the default."""
        return _stack.get()[-1]

    def __enter__(self) -> PassContext:
        entered: list[Instrument] = []
        try:
            for instrument in self.instruments:
                instrument.enter()
                entered.append(instrument)
        except BaseException:
            for instrument in reversed(entered):
                instrument.exit()
            raise
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _stack.set(_stack.get()[:-1])
        for instrument in reversed(self.instruments):
            instrument.exit()

    def runs(self, name: str) -> bool:
        """Whether the pass with this name runs. Unmarked passes run unless they are disabled."""
        if name in self.disabled_pass:
            return False
        return name in self.required_pass or LEVELS.get(name, ALWAYS) <= self.opt_level


_stack: ContextVar[tuple[PassContext, ...]] = ContextVar("passes", default=(PassContext(),))


@contextmanager
def options(config: Mapping[str, Any]) -> Iterator[None]:
    """The current context with other values for some options. Its instruments go on watching.
    Raises PassError."""
    current = PassContext.current()
    token = _stack.set((*_stack.get(), replace(current, config={**current.config, **config})))
    try:
        yield
    finally:
        _stack.reset(token)


def option(name: str) -> Any:
    """The value of an option in the current context, or its default."""
    return PassContext.current().config.get(name, OPTIONS[name])


def run_passes(
    kind: str,
    program: P,
    steps: Iterable[Callable[[P], P] | str],
    check: Callable[[P, str], object],
    watch: Callable[[str, P, bool], None] | None = None,
) -> P:
    """The program after all steps that run in the current context.

    kind: "graph" or "lower"; its options apply. check(program, name) verifies the result of a pass.
    watch(name, program, changed) sees the program after every step, as instruments do.
    """
    wanted = tuple(_wanted(kind, steps))
    instruments = [*PassContext.current().instruments, *_dump(kind, wanted)]
    for step in wanted:
        name = step.__name__
        for instrument in instruments:
            instrument.before(name, program)
        before, program = program, step(program)
        changed = program is not before
        for instrument in instruments:
            instrument.after(name, program, changed)
        if changed:
            check(program, name)
        if watch is not None:
            watch(name, program, changed)
    return program


def _wanted(kind: str, steps: Iterable[Callable[[P], P] | str]) -> Iterator[Callable[[P], P]]:
    context = PassContext.current()
    added = [(_phase(kind, phase), f) for phase, f in option(f"{kind}.add_pass")]
    for step in steps:
        if isinstance(step, str):
            yield from (f for phase, f in added if phase == step)
        elif context.runs(step.__name__):
            yield step


def _phase(kind: str, phase: object) -> str:
    names = PHASES[kind]
    if isinstance(phase, int) and 0 <= phase < len(names):
        return names[phase]
    if phase not in names:
        raise PassError(f"{kind}.add_pass: no phase {phase!r}", mend=f"one of {', '.join(names)}")
    return str(phase)


def _dump(kind: str, steps: Iterable[Callable[[P], P]]) -> list[Instrument]:
    """The instrument that prints the program after chosen steps. Raises PassError for unknown
    names."""
    chosen = option(f"{kind}.dump")
    wanted = chosen or os.environ.get("MLC_DUMP", "")
    if not wanted:
        return []
    names = () if wanted in ("all", "1") else wanted.split(",")
    added = (f for k in PHASES for _, f in option(f"{k}.add_pass"))
    known = {*LEVELS, *(f.__name__ for f in (*steps, *added))}
    for name in names:
        if name not in known:
            raise PassError(
                f"{f'{kind}.dump' if chosen else 'MLC_DUMP'}: no pass '{name}'",
                mend=f"all, or {_nearest(name, known)}",
            )
    return [PrintInstrument(names)]


def _check_option(name: str, value: object) -> None:
    if name not in OPTIONS:
        raise PassError(f"config: no option '{name}'", mend=_nearest(name, OPTIONS))
    if name.endswith(".add_pass"):
        _check_passes(name, value)
    elif name == "graph.layouts":
        _check_layouts(name, value)
    elif name == "graph.memory" and value not in MEMORY:
        raise PassError(f"config: option '{name}' is {value!r}", mend=" or ".join(MEMORY))
    elif type(value) is not type(OPTIONS[name]):
        wanted = type(OPTIONS[name]).__name__
        raise PassError(f"config: option '{name}' is {value!r}", mend=f"a value of type {wanted}")
    elif isinstance(value, int) and value < 0:
        raise PassError(f"config: option '{name}' is {value}, less than 0")


def _check_layouts(name: str, value: object) -> None:
    for item in value.items() if isinstance(value, Mapping) else [value]:
        match item:
            case (str(), str(layout)) if re.fullmatch(r"NCHW([1-9]\d*c)?", layout):
                pass
            case _:
                raise PassError(
                    f"config: option '{name}' holds {item!r}",
                    mend='{"name of a layer": "NCHW"}, or a layout such as NCHW4c',
                )


def _check_passes(name: str, value: object) -> None:
    kind = name.partition(".")[0]
    for item in value if isinstance(value, Sequence) else [value]:
        match item:
            case (phase, function) if callable(function):
                _phase(kind, phase)
            case _:
                raise PassError(
                    f"config: option '{name}' holds {item!r}",
                    mend=f'[("{PHASES[kind][0]}", function)]',
                )


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f"one of {', '.join(difflib.get_close_matches(name, names, 3) or names)}"
