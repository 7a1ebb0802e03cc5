"""The trace: what was done to a schedule, as data that prints, serialises and replays.

A handle or a sampled number that one instruction gave and another takes is recorded as that link,
not as its value, so a trace replays on a fresh function, and with other decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import ScheduleError

if TYPE_CHECKING:
    from .schedule import Schedule

VERSION = 1


class BlockRV(str):
    """A block, by name."""

    __slots__ = ()


class LoopRV(str):
    """A loop, by name."""

    __slots__ = ()


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
        """What was chosen, by number of instruction."""
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
        """Without the instructions that only look, and of whose results nothing is used. What was
        chosen is kept, used or not."""
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
        """Replays on a schedule. Raises ScheduleError where a primitive does not apply there."""
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

        for instruction in self.instructions:
            arguments = {key: resolved(v) for key, v in instruction.arguments.items()}
            if instruction.decision is not None:
                arguments["decision"] = instruction.decision
            results.append(as_results(sch.perform(instruction.name, arguments)))

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
        """Raises ValueError for what is no trace of this version."""
        match data:
            case [int(version), list(body)] if version == VERSION:
                try:
                    return Trace(
                        tuple(
                            Instruction(
                                str(name),
                                {str(k): _decoded(v) for k, v in arguments.items()},
                                str(kinds),
                                decision,
                            )
                            for name, arguments, kinds, decision in body
                        )
                    )
                except (TypeError, AttributeError, KeyError, ValueError) as error:
                    raise ValueError(f"no schedule trace: {error}") from error
            case [int(version), *_] if version != VERSION:
                raise ValueError(f"a schedule trace of version {version}; this is {VERSION}")
        raise ValueError("no schedule trace: a list of its version and its instructions is needed")

    @staticmethod
    def loads(text: str) -> Trace:
        try:
            return Trace.from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"no schedule trace: {error}") from error


# Primitives that change nothing, and those whose results are lists.
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
LISTS = LOOKS - {"get_block"} | {"split", "sample_perfect_tile"}


def _outputs(value: Any) -> Iterator[Output]:
    match value:
        case Output():
            yield value
        case list():
            for v in value:
                yield from _outputs(v)


def gives_list(name: str) -> bool:
    """Whether a primitive's result is a list, however many it has."""
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
    return value


def _decoded(value: Any) -> Any:
    match value:
        case {"output": [int(instruction), int(index)]}:
            return Output(instruction, index)
        case list():
            return [_decoded(v) for v in value]
    return value


def sampling_instructions(trace: Trace) -> Iterator[tuple[int, Instruction]]:
    """The instructions that chose something, with their numbers: what a tuner mutates."""
    return ((n, i) for n, i in enumerate(trace.instructions) if i.decision is not None)
