"""`merge`: objects of one kernel each become one object, as `ld -r` would make it.

    of each object                            of the whole
    code                                      .text
    constants                                 .rodata
    relocations of these                      .rel.text, .rel.rodata (.rela on 64-bit machines)
    the function KERNEL                       a global function of the kernel's name
    KERNEL0, KERNEL1... of one object         those of the kernels that share the object
    other symbols                             the ones that relocations name; undefined ones once
    .ARM.attributes, of one convention        .ARM.attributes of the first
    unwind tables, notes, names of files      nothing: kernels do not unwind
                                              .mlc: the metadata

A section of an object becomes a piece of a section of the whole. The symbol of the section becomes
an ordinary one at the piece's beginning, so that addends stay as they are: on 32-bit ARM they are
fields of instructions, too small for an offset in the whole. Constants lose the mark "mergeable",
since a linker would separate what such symbols hold together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_targets.object_format import METADATA_SECTION

from ..errors import CodegenError
from .arm_attributes import OF_FUNCTIONS, attributes_of
from .elf import (
    ALLOC,
    ATTRIBUTES,
    EXECINSTR,
    FUNC,
    GLOBAL,
    LOCAL,
    MERGE,
    NOTYPE,
    OBJECT,
    PROGBITS,
    SECTION,
    STRINGS,
    TABLES,
    UNDEFINED,
    UNWIND,
    Object,
    Relocation,
    Section,
    Symbol,
    read_object,
    write_object,
)

KERNEL = "kernel"  # the name of the function in an object to merge
TEXT, CONSTANTS = 1, 2  # sections of the whole
DROPPED = (".eh_frame", ".note.", ".comment", ".llvm_addrsig")

Places = Mapping[int, tuple[int, int]]  # a section of an object -> one of the whole, offset there


def merge(objects: Sequence[tuple[str | tuple[str, ...], bytes]], metadata: bytes) -> bytes:
    """One relocatable object: kernels under the names given with them, metadata in its section.

    Each object comes from LLVM, for one target, with one function KERNEL. An object named "" has no
    kernel, and only gives the target. An object with several names has a function for each: KERNEL
    with its number. The same arguments give the same bytes. Raises CodegenError for a kernel with
    the name of a function that one of them calls, and for objects with unexpected content.
    """
    called = dict([_names(names) for names, _ in objects])
    assert len(called) == len(objects), "objects have names of their own"
    parts = {name: _read(name, data) for name, (_, data) in zip(called, objects, strict=True)}
    kernels = [kernel for known in called.values() for kernel in known.values()]
    assert parts and len(set(kernels)) == len(kernels), "kernels have names of their own"
    first = next(iter(parts.values()))
    for name, o in parts.items():
        if _calling(o) != _calling(first):
            raise _refused(name, "another machine, or another calling convention")
    text, constants = _Part(), _Part()
    grown = {TEXT: text, CONSTANTS: constants}
    places = {name: _place(name, o, grown) for name, o in parts.items()}

    # The new symbols, by object and number; undefined ones by their names.
    found: dict[tuple[str, int], Symbol] = {("", 0): Symbol("")}
    for name, o in parts.items():
        wanted = {r.symbol for n in places[name] for r in o.relocations.get(n, ())}
        for n, s in enumerate(o.symbols):
            marked = s.binding != LOCAL or s.name.startswith("$")  # ARM's marks of code and data
            if n in wanted or (marked and s.section in places[name]):
                found.setdefault(_key(name, o, n), _symbol(name, o, s, places[name], called[name]))
    order = sorted(found, key=lambda k: _rank(found[k]))
    numbers = {key: n for n, key in enumerate(order)}
    _check_names([found[key] for key in order], kernels)

    relocations: dict[int, list[Relocation]] = {TEXT: [], CONSTANTS: []}
    for name, o in parts.items():
        for n, (section, at) in places[name].items():
            relocations[section] += (
                replace(r, offset=at + r.offset, symbol=numbers[_key(name, o, r.symbol)])
                for r in o.relocations.get(n, ())
            )
    whole = Object(
        machine=first.machine,
        flags=first.flags,
        sections=(
            Section(""),
            Section(".text", PROGBITS, ALLOC | EXECINSTR, bytes(text.content), text.alignment),
            Section(".rodata", PROGBITS, ALLOC, bytes(constants.content), constants.alignment),
            *_attributes(first),
            Section(METADATA_SECTION, PROGBITS, 0, metadata),
            Section(".note.GNU-stack", PROGBITS),  # says that the stack need not be executable
        ),
        symbols=tuple(found[key] for key in order),
        relocations={n: tuple(entries) for n, entries in relocations.items() if entries},
    )
    return write_object(whole)


class _Part:
    """A section of the whole as it grows."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.alignment = 1

    def add(self, piece: Section) -> int:
        """The piece's offset."""
        alignment = max(piece.alignment, 1)
        self.alignment = max(self.alignment, alignment)
        self.content.extend(bytes(-len(self.content) % alignment))
        at = len(self.content)
        self.content += piece.content
        return at


def _names(names: str | tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """(the name of an object here, its kernels' names by the names of their functions)."""
    if isinstance(names, str):
        return names, {KERNEL: names}
    return names[0], {f"{KERNEL}{number}": name for number, name in enumerate(names)}


def _read(name: str, data: bytes) -> Object:
    try:
        return read_object(data)
    except ValueError as error:
        raise _unmerged(name, str(error)) from None


def _attributes(o: Object) -> tuple[Section, ...]:
    return tuple(s for s in o.sections if s.type == ATTRIBUTES)


def _calling(o: Object) -> tuple[object, ...]:
    """The machine and the calling convention."""
    attributes = (attributes_of(s.content) for s in _attributes(o))
    kept = [sorted((t, n) for t, n in tags.items() if t not in OF_FUNCTIONS) for tags in attributes]
    return o.machine, o.flags, kept


def _place(name: str, o: Object, parts: Mapping[int, _Part]) -> Places:
    """Where the object's code and constants go; the parts grow by them."""
    places: dict[int, tuple[int, int]] = {}
    for n, s in enumerate(o.sections):
        if s.type in (*TABLES, UNWIND, ATTRIBUTES) or s.name.startswith(DROPPED):
            continue
        kept = s.flags & ~(MERGE | STRINGS)
        if s.type != PROGBITS or kept not in (ALLOC, ALLOC | EXECINSTR):
            raise _refused(name, f"section '{s.name}' of type {s.type:#x}, flags {s.flags:#x}")
        section = TEXT if kept & EXECINSTR else CONSTANTS
        places[n] = section, parts[section].add(s)
    return places


def _key(name: str, o: Object, number: int) -> tuple[str, int]:
    s = o.symbols[number]
    return (s.name, 0) if s.section == UNDEFINED else (name, number)


def _symbol(name: str, o: Object, s: Symbol, places: Places, called: Mapping[str, str]) -> Symbol:
    """The symbol of the whole for a symbol of an object."""
    if s.section == UNDEFINED:
        return s
    if s.section not in places:
        raise _refused(name, f"symbol '{s.name}' in section {s.section:#x}")
    section, at = places[s.section]
    if s.binding == GLOBAL and s.type == FUNC and s.name in called:
        return replace(s, name=called[s.name], section=section, value=at + s.value)
    if s.binding == LOCAL and s.type == SECTION:
        piece = o.sections[s.section].name
        return replace(s, name=piece, type=NOTYPE, section=section, value=at)
    if s.binding == LOCAL and s.type in (NOTYPE, OBJECT, FUNC):
        return replace(s, section=section, value=at + s.value)
    raise _refused(name, f"symbol '{s.name}' of binding {s.binding} and type {s.type}")


def _rank(s: Symbol) -> int:
    """Local symbols, then kernels, then undefined ones."""
    return 0 if s.binding == LOCAL else 1 if s.section != UNDEFINED else 2


def _check_names(symbols: Sequence[Symbol], kernels: Sequence[str]) -> None:
    """Refuses a missing kernel, and one that would be called in place of a function of its name."""
    names = {s.name for s in symbols if s.binding == GLOBAL and s.section != UNDEFINED}
    for name in kernels:
        if name and name not in names:
            raise _refused(name, f"no function '{KERNEL}'")
    for s in symbols:
        if s.section == UNDEFINED and s.name and s.name in kernels:
            raise CodegenError(
                f"kernel '{s.name}' has the name of a function that generated code calls",
                mend=f"another name, such as {s.name}_kernel",
            )


def _refused(name: str, what: str) -> CodegenError:
    return _unmerged(name, f"it has {what}")


def _unmerged(name: str, why: str) -> CodegenError:
    return CodegenError(f"the object of kernel '{name}' cannot be merged: {why}")
