"""The trace: a schedule's instructions as data that prints, serialises and replays.

Where an instruction takes the handle or number that an earlier one gave, the trace records the
link, not the value. So it replays on a fresh function, and with other decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import MlcError, ScheduleError
from ..files.fields import NoJson, parsed
from ..ir import Stmt, inner_statements

if TYPE_CHECKING:
    from .schedule import Schedule

VERSION = 1

# Traces may come from other people's databases. No schedule makes longer ones, which could take all
# time and memory.
MOST_INSTRUCTIONS = 1000
MOST_ITEMS = 256  # of a list: factors, loops, candidates
MOST_NESTED = 3  # lists in lists
MOST_CHARACTERS = 1000  # of a name, of an index map
LARGEST = 1 << 31
DEEPEST = 100  # nesting of statements: passes walk them recursively


class BlockRV(str):
    """A block, by name; `func` is the function it is of, where a schedule has several."""

    __slots__ = ("func",)
    func: str


class LoopRV(str):
    """A loop, by name; `func` as a block's."""

    __slots__ = ("func",)
    func: str


class SampledInt(int):
    """A number that a sampling instruction gave. Arithmetic makes a plain int of it, whose origin
    the trace does not know."""


Handle = BlockRV | LoopRV | SampledInt


@dataclass(frozen=True, slots=True)
class Output:
    """The result number `index` of instruction number `instruction` of the same trace."""

    instruction: int
    index: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One primitive: its arguments by name, with Outputs for handles, and how many results it gave.
    Positional arguments stand under one name with a star.

    `kinds` has a letter per result: b(lock), l(oop) or v(alue). `decision` is what a sampling
    instruction chose, None for others.
    """

    name: str
    arguments: Mapping[str, Any]
    kinds: str
    decision: Any = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Instructions in order. A value: `with_decision` gives another trace."""

    instructions: tuple[Instruction, ...] = ()

    def __str__(self) -> str:
        return self.as_python()

    @property
    def decisions(self) -> dict[int, Any]:
        """The decisions, by number of instruction."""
        return {n: i.decision for n, i in enumerate(self.instructions) if i.decision is not None}

    def with_decision(self, instruction: int, decision: Any) -> Trace:
        """The trace with one choice changed; ValueError where that instruction chose nothing."""
        chosen = self.instructions[instruction]
        if chosen.decision is None:
            raise ValueError(f"instruction {instruction}, {chosen.name}, takes no decision")
        changed = list(self.instructions)
        changed[instruction] = replace(chosen, decision=decision)
        return Trace(tuple(changed))

    def simplified(self) -> Trace:
        """Without the instructions that only look and whose results are unused. Choices are kept,
        used or not."""
        used: set[int] = set()
        for number in range(len(self.instructions) - 1, -1, -1):
            i = self.instructions[number]
            if number in used or i.name not in LOOKS:
                used.add(number)
                used.update(o.instruction for o in _outputs(list(i.arguments.values())))
        numbers = {old: new for new, old in enumerate(sorted(used))}

        def moved(value: Any) -> Any:
            match value:
                case Output(instruction, index):
                    return Output(numbers[instruction], index)
                case list():
                    return [moved(v) for v in value]
            return value

        kept = (self.instructions[old] for old in numbers)
        return Trace(
            tuple(replace(i, arguments={k: moved(v) for k, v in i.arguments.items()}) for i in kept)
        )

    def apply(self, sch: Schedule) -> None:
        """Replays on a schedule. Raises ScheduleError where a primitive does not apply there, or
        fails in any other way: a trace may hold anything."""
        results: list[list[Any]] = []

        def resolved(value: Any) -> Any:
            match value:
                case Output(instruction, index):
                    try:
                        return results[instruction][index]
                    except IndexError:
                        name = self.instructions[instruction].name
                        raise ScheduleError(
                            f"trace: {name} (instruction {instruction}) gave fewer results than "
                            "when it was recorded",
                            mend="replay it on the program it was recorded on",
                        ) from None
                case list():
                    return [resolved(v) for v in value]
            return value

        for number, i in enumerate(self.instructions):
            try:
                arguments = {key: resolved(v) for key, v in i.arguments.items()}
                if i.decision is not None:
                    arguments["decision"] = i.decision
                results.append(as_results(sch.perform(i.name, arguments)))
            except MlcError:
                raise
            except Exception as error:
                raise ScheduleError(
                    f"trace: {i.name} (instruction {number}) fails: {type(error).__name__}: {error}"
                ) from error
            last = number == len(self.instructions) - 1
            if (last or number % 16 == 15) and _deeper(sch.func.body, DEEPEST):
                raise ScheduleError(
                    f"trace: {i.name} (instruction {number}) leaves more than {DEEPEST} statements "
                    "in one another"
                )

    def show(self) -> None:
        """Prints it as Python."""
        print(self)

    def as_python(self) -> str:
        """A function `apply_trace(sch)` that can be pasted and run."""
        lines = ["def apply_trace(sch: Schedule) -> None:"]
        names: list[list[str]] = []
        count = 0
        for i in self.instructions:
            made = [f"{kind}{count + n}" for n, kind in enumerate(i.kinds)]
            count += len(made)
            names.append(made)
            words = [_argument(key, value, names) for key, value in i.arguments.items()]
            if i.decision is not None:
                words.append(f"decision={i.decision!r}")
            left = ""
            if made:
                left = ", ".join(made) + ("," if gives_list(i.name) and len(made) == 1 else "")
                left += " = "
            lines.append(f"    {left}sch.{i.name}({', '.join(words)})")
        return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])

    def as_json(self) -> list[Any]:
        """Plain lists, dicts, strings and numbers."""
        body = [
            [i.name, {k: _encoded(v) for k, v in i.arguments.items()}, i.kinds, i.decision]
            for i in self.instructions
        ]
        return [VERSION, body]

    def dumps(self) -> str:
        return json.dumps(self.as_json())

    @staticmethod
    def from_json(data: Any) -> Trace:
        """Raises ValueError for what is not a trace of this version."""
        match data:
            case [int(version), list(body)] if version == VERSION:
                if len(body) > MOST_INSTRUCTIONS:
                    raise ValueError(f"no schedule trace: {len(body)} instructions")
                made: list[Instruction] = []
                for number, entry in enumerate(body):
                    try:
                        made.append(_instruction(entry, made))
                    except ValueError as error:
                        why = f"instruction {number}: {error}"
                        raise ValueError(f"no schedule trace: {why}") from error
                return Trace(tuple(made))
            case [int(version), *_] if version != VERSION:
                raise ValueError(f"a schedule trace of version {version}; this is {VERSION}")
        raise ValueError("no schedule trace: a list of its version and its instructions is needed")

    @staticmethod
    def loads(text: str) -> Trace:
        """Raises ValueError for what is not a trace of this version."""
        try:
            data = parsed(text).value
        except NoJson as error:
            raise ValueError(f"no schedule trace: {error}") from error
        return Trace.from_json(data)


# Primitives that change nothing, those that choose, and those whose results are lists.
LOOKS = frozenset(
    (
        "get_block",
        "get_loops",
        "get_child_blocks",
        "get_producers",
        "get_consumers",
        "get_output_blocks",
    )
)
SAMPLES = frozenset(("sample_perfect_tile", "sample_categorical", "sample_compute_location"))
LISTS = LOOKS - {"get_block"} | {"split", "sample_perfect_tile"}


def _outputs(value: Any) -> Iterator[Output]:
    match value:
        case Output():
            yield value
        case list():
            for v in value:
                yield from _outputs(v)


def gives_list(name: str) -> bool:
    """Whether a primitive's result is a list, even of one item."""
    return name in LISTS


def as_results(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


class Recorder:
    """Collects a schedule's instructions, and knows which result each handle came from."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        # handles are found by identity: two loops may have had one name at different times
        self._origin: dict[int, tuple[Any, Output]] = {}

    def add(self, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        number = len(self.instructions)
        results = as_results(result)
        decision = arguments.get("decision")
        if name == "sample_perfect_tile":
            decision = [int(r) for r in results]
        kept = {k: self._linked(v) for k, v in arguments.items() if k != "decision"}
        self.instructions.append(
            Instruction(name, kept, "".join(_kind(r) for r in results), decision)
        )
        for index, value in enumerate(results):
            self._origin[id(value)] = (value, Output(number, index))

    def _linked(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._linked(v) for v in value]
        if isinstance(value, (BlockRV, LoopRV, SampledInt)):
            found = self._origin.get(id(value))
            if found is not None and found[0] is value:
                return found[1]
            return str(value) if isinstance(value, str) else int(value)
        return value

    def trace(self) -> Trace:
        return Trace(tuple(self.instructions))

    def copy(self) -> Recorder:
        other = Recorder()
        other.instructions = list(self.instructions)
        other._origin = dict(self._origin)
        return other


def _kind(result: Any) -> str:
    return "b" if isinstance(result, BlockRV) else "l" if isinstance(result, LoopRV) else "v"


def _deeper(s: Stmt, most: int) -> bool:
    return most == 0 or any(_deeper(inner, most - 1) for inner in inner_statements(s))


def _text(value: Any, names: Sequence[Sequence[str]]) -> str:
    match value:
        case Output(instruction, index):
            return names[instruction][index]
        case list():
            return f"[{', '.join(_text(v, names) for v in value)}]"
    return repr(value)


def _argument(key: str, value: Any, names: Sequence[Sequence[str]]) -> str:
    """An argument of a call; "*order" is the name of positional ones."""
    if key[0] == "*":
        return ", ".join(_text(v, names) for v in value)
    return f"{key}={_text(value, names)}"


def _encoded(value: Any) -> Any:
    match value:
        case Output(instruction, index):
            return {"output": [instruction, index]}
        case list():
            return [_encoded(v) for v in value]
        case Mapping():
            return {"dict": [[k, _encoded(v)] for k, v in value.items()]}
    return value


def _instruction(entry: Any, earlier: Sequence[Instruction]) -> Instruction:
    """The instruction that follows `earlier` ones; ValueError where it is none."""
    match entry:
        case [str(name), dict(arguments), str(kinds), decision]:
            pass
        case _:
            raise ValueError("it is not a list of a name, arguments, kinds and a decision")
    if not name.isidentifier() or len(name) > MOST_CHARACTERS:
        raise ValueError("its name is none")
    if len(kinds) > MOST_CHARACTERS or not set(kinds) <= set("blv"):
        raise ValueError("its results are of no kind")
    if decision is None and name in SAMPLES:
        raise ValueError("it has no decision")
    decoded: dict[str, Any] = {}
    for key, value in arguments.items():
        if not key.removeprefix("*").isidentifier():
            raise ValueError(f"{key!r:.60} names no argument")
        if key[0] == "*" and not isinstance(value, list):
            raise ValueError(f"{key} is not a list")
        decoded[key] = _decoded(value, earlier)
    return Instruction(name, decoded, kinds, _decoded(decision, ()))


def _decoded(value: Any, earlier: Sequence[Instruction], nested: int = 0) -> Any:
    match value:
        case {"output": [int(instruction), int(index)], **rest} if not rest:
            if not 0 <= instruction < len(earlier):
                raise ValueError(f"there is no instruction {instruction} before it")
            if not 0 <= index < len(earlier[instruction].kinds):
                raise ValueError(f"instruction {instruction} has no result {index}")
            return Output(instruction, index)
        case {"dict": list(items), **rest} if not rest:
            return _decoded_dict(items, earlier, nested)
        case list():
            if len(value) > MOST_ITEMS or nested == MOST_NESTED:
                raise ValueError("a list is too long or too deep")
            return [_decoded(v, earlier, nested + 1) for v in value]
        case str():
            if len(value) > MOST_CHARACTERS:
                raise ValueError("a text is too long")
            return value
        case None | bool():
            return value
        case int() | float():
            if not abs(value) <= LARGEST:  # nor for NaN
                raise ValueError("a number is too large")
            return value
    raise ValueError(f"{value!r:.60} is not a value")


def _decoded_dict(
    items: Sequence[Any], earlier: Sequence[Instruction], nested: int
) -> dict[str, Any]:
    if len(items) > MOST_ITEMS or nested == MOST_NESTED:
        raise ValueError("a dict is too long or too deep")
    made: dict[str, Any] = {}
    for item in items:
        match item:
            case [str(key), value] if len(key) <= MOST_CHARACTERS:
                made[key] = _decoded(value, earlier, nested + 1)
            case _:
                raise ValueError(f"{item!r:.60} is not an item of a dict")
    return made


def sampling_instructions(trace: Trace) -> Iterator[tuple[int, Instruction]]:
    """The instructions that chose something, with their numbers: what a tuner mutates."""
    return ((n, i) for n, i in enumerate(trace.instructions) if i.decision is not None)
