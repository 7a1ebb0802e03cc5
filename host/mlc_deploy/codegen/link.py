"""`link`: the user's objects beside the kernels, as with `ld -r`.

    of our object                             of the whole
    every section and symbol                  the same
    of each of the user's objects
    code, constants, data, zeros (.bss)       sections of the same names and contents
    relocations of these                      the same, of symbols by their numbers in the whole
    common symbols                            zeros of their own
    notes, unwind tables, debug information   nothing: kernels do not unwind
    a global symbol                           the one of its name, whichever object defines it

A symbol that no object defines stays undefined: the loader or linker of the whole reports or
provides it (the board's runtime has C's mathematics and memcpy). A user's objects may hold any
bytes, so every reference is checked here, and again by the board's loader, which relocates the
whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import CodegenError
from ..ir.names import LIBRARY_NAMES
from .arm_attributes import ANY_FLOAT, HARD_FLOAT, VFP_ARGS, Attributes, attributes_of, lacking
from .elf import (
    ABSOLUTE,
    ALLOC,
    ARM,
    ATTRIBUTES,
    COMMON,
    EXECINSTR,
    LOCAL,
    MACHINES,
    NOBITS,
    NOTE,
    OBJECT,
    PROGBITS,
    TABLES,
    TLS,
    UNDEFINED,
    UNWIND,
    WEAK,
    WRITE,
    Object,
    Relocation,
    Section,
    Symbol,
    read_object,
    without_tables,
    write_object,
)

DROPPED = (".eh_frame", ".ARM.ex", ".note.")
RESERVED = 0xFF00  # section numbers from here on have special meanings
EABI = 24  # the lowest bit of the version in ARM's flags
MOST_COMMON = 64 << 20  # bytes, the limit of a board's loader


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """A user's object, by the name of its file."""

    name: str
    code: bytes


def link(whole: bytes, objects: Sequence[LinkedObject]) -> bytes:
    """The object with the user's beside it. The same arguments give the same bytes. Raises
    CodegenError for an object that does not fit, naming file and symbol."""
    if not objects:
        return whole
    own = read_object(whole)
    linker = _Linker(own)
    for o in objects:
        linker.add(o.name, _read(o, own))
    return write_object(linker.whole())


def _read(given: LinkedObject, own: Object) -> Object:
    """A user's object for the same machine, with the same calling convention."""
    try:
        o = read_object(given.code)
        has, wants = _attributes(own), _attributes(o)
    except ValueError as error:
        raise CodegenError(
            f"{given.name}: {error}",
            where=f"--link {given.name}",
            mend="a file that cc -c wrote; of an archive or a shared object, the .o files in it",
        ) from None
    if o.machine != own.machine:
        raise _refused(
            given.name,
            f"is for {MACHINES[o.machine]}, the kernels are for {MACHINES[own.machine]}",
            f"a compiler for {MACHINES[own.machine]}",
        )
    if o.machine == ARM:
        if o.flags >> EABI != own.flags >> EABI:
            raise _refused(given.name, "is of another ARM EABI version", "cc of gnueabihf")
        if _is_hard(wants) not in (None, _is_hard(has)):
            names = {True: "hard-float", False: "soft-float"}
            theirs, ours = (names[bool(_is_hard(a))] for a in (wants, has))
            raise _refused(
                given.name,
                f"has the {theirs} calling convention, the kernels have the {ours} one",
                f"-mfloat-abi={ours.partition('-')[0]}",
            )
        if (missing := lacking(has, wants)) is not None:
            raise _refused(
                given.name,
                f"uses {missing}, which the target does not have",
                "-march and -mfpu of the target for the compiler, or a --target that has it",
            )
    return o


def _attributes(o: Object) -> Attributes:
    sections = [s for s in o.sections if s.type == ATTRIBUTES]
    return attributes_of(sections[0].content) if sections and o.machine == ARM else {}


def _is_hard(a: Attributes) -> bool | None:
    """Whether floats are passed in float registers; None where no function passes any."""
    return None if a.get(VFP_ARGS) == ANY_FLOAT else a.get(VFP_ARGS, 0) == HARD_FLOAT


class _Linker:
    """The growing whole. The key of a global symbol is its name, of others (the object's number,
    the symbol's number)."""

    def __init__(self, own: Object) -> None:
        self.machine, self.flags = own.machine, own.flags
        self.sections: list[Section] = list(without_tables(own))
        self.relocations: dict[int, list[tuple[str, Relocation, str | tuple[int, int]]]] = {}
        self.locals: dict[tuple[int, int], Symbol] = {(0, 0): Symbol("")}
        self.globals: dict[str, Symbol] = {}
        self.definers: dict[str, str] = {}  # the file that defines each symbol
        self.weak: set[str] = set()  # the symbols with a weak definition
        self.wanted: set[str] = set()
        self.count = 0
        self.take("", own, {n: n for n in range(len(self.sections))})

    def add(self, name: str, o: Object) -> None:
        places: dict[int, int] = {}
        for n, s in enumerate(o.sections):
            if not s.flags & ALLOC or s.type in (*TABLES, NOTE, UNWIND, ATTRIBUTES):
                continue
            if s.name.startswith(DROPPED):
                continue
            if s.flags & TLS or s.type not in (PROGBITS, NOBITS):
                kind = "thread-local" if s.flags & TLS else f"of type {s.type:#x}"
                raise _refused(
                    name,
                    f"has section '{s.name}', which is {kind}",
                    "no thread-local variables and no code that runs before main",
                )
            kept = s.flags & (ALLOC | WRITE | EXECINSTR)
            places[n] = len(self.sections)
            self.sections.append(replace(s, flags=kept))
        self.take(name, o, places)

    def take(self, name: str, o: Object, places: dict[int, int]) -> None:
        """Adds symbols, and relocations of the sections that have a place."""
        part = self.count
        self.count += 1
        used = {r.symbol for n in places for r in o.relocations.get(n, ())}
        for n, s in enumerate(o.symbols):
            marked = s.name.startswith("$") or not name  # ARM's marks of code and data
            if n and (s.binding != LOCAL or n in used or (marked and s.section in places)):
                self.symbol(name, part, n, s, places)
        for n, to in places.items():
            for r in o.relocations.get(n, ()):
                if r.symbol >= len(o.symbols):
                    raise _refused(name, f"refers to symbol {r.symbol}, which it does not have")
                s = o.symbols[r.symbol]
                key = s.name if s.binding != LOCAL else (part, r.symbol) if r.symbol else (0, 0)
                if s.binding != LOCAL:
                    self.wanted.add(s.name)
                self.relocations.setdefault(to, []).append((name, r, key))

    def symbol(self, name: str, part: int, n: int, s: Symbol, places: dict[int, int]) -> None:
        if s.section == COMMON and s.binding != LOCAL:
            self.define(name, self.common(name, s), weak=True)
        elif s.section == UNDEFINED:
            if s.binding != LOCAL:
                self.globals.setdefault(s.name, s)
        elif s.section == ABSOLUTE or s.section in places:
            placed = replace(s, section=places.get(s.section, s.section))
            if s.binding == LOCAL:
                self.locals[part, n] = placed
            else:
                self.define(name, placed, weak=s.binding == WEAK)
        elif s.section >= RESERVED:
            raise _refused(name, f"has symbol '{s.name}' in section {s.section:#x}")

    def common(self, name: str, s: Symbol) -> Symbol:
        """Zeros for a variable that C leaves to the linker."""
        if s.size > MOST_COMMON:
            raise _refused(name, f"has variable '{s.name}' of {s.size} bytes")
        zeros = Section(".bss", NOBITS, ALLOC | WRITE, b"", max(s.value, 1), s.size)
        self.sections.append(zeros)
        return replace(s, type=OBJECT, section=len(self.sections) - 1, value=0)

    def define(self, name: str, s: Symbol, weak: bool) -> None:
        before = self.globals.get(s.name)
        if before is not None and before.section != UNDEFINED:
            if weak:
                return
            if s.name in self.weak:
                self.weak.discard(s.name)
                self.globals[s.name], self.definers[s.name] = s, name
                return
            other = self.definers[s.name]
            what = f"{other} defines, too" if other else "is a kernel's name"
            mend = "static, or another name" if other else f"another name, such as own_{s.name}"
            raise _refused(name, f"defines '{s.name}', which {what}", mend)
        if name and s.name.removesuffix("f") in LIBRARY_NAMES | {"exp2", "fabs"}:
            raise _refused(
                name,
                f"defines '{s.name}', which generated code may call",
                f"another name, such as own_{s.name}",
            )
        self.globals[s.name], self.definers[s.name] = s, name
        if weak:
            self.weak.add(s.name)

    def whole(self) -> Object:
        defined = [s for s in self.globals.values() if s.section != UNDEFINED]
        missing = [
            s for s in self.globals.values() if s.section == UNDEFINED and s.name in self.wanted
        ]
        order: list[str | tuple[int, int]] = [*self.locals, *(s.name for s in (*defined, *missing))]
        numbers = {key: n for n, key in enumerate(order)}
        relocations: dict[int, tuple[Relocation, ...]] = {}
        for section, entries in self.relocations.items():
            made = []
            for name, r, key in entries:
                if key not in numbers:
                    raise _refused(name, f"refers to symbol {r.symbol}, which is not part of it")
                made.append(replace(r, symbol=numbers[key]))
            relocations[section] = tuple(made)
        symbols = (*self.locals.values(), *defined, *missing)
        return Object(self.machine, self.flags, tuple(self.sections), symbols, relocations)


def undefined(code: bytes) -> tuple[str, ...]:
    """The functions that an object calls and does not define."""
    return tuple(
        s.name for s in read_object(code).symbols if s.section == UNDEFINED and s.binding != LOCAL
    )


def _refused(name: str, what: str, mend: str = "") -> CodegenError:
    return CodegenError(f"{name} {what}", where=f"--link {name}", mend=mend)
