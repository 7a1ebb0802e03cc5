"""Relocatable ELF objects as values: read, and written again.

    header | contents of sections | section headers

Little-endian, for the three machines that kernels are compiled for. Tables that describe the rest
(symbols, names, relocations) are not sections here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

ARM, X86_64, AARCH64 = 40, 62, 183  # machines
MACHINES = {ARM: "arm", X86_64: "x86_64", AARCH64: "aarch64"}
NULL, PROGBITS, SYMTAB, STRTAB, RELA, REL = 0, 1, 2, 3, 4, 9  # types of sections
NOTE, NOBITS = 7, 8
ATTRIBUTES, UNWIND = 0x70000003, 0x70000001  # of 32-bit ARM's
WRITE, ALLOC, EXECINSTR, MERGE, STRINGS, INFO_LINK = 1, 2, 4, 0x10, 0x20, 0x40  # their flags
TLS = 0x400
MOST_ALIGNMENT = 4096  # bytes; LLVM asks for at most a vector's, or a page
UNDEFINED, ABSOLUTE, COMMON = 0, 0xFFF1, 0xFFF2  # special values of a section's number
LOCAL, GLOBAL, WEAK = 0, 1, 2  # bindings of symbols
NOTYPE, OBJECT, FUNC, SECTION, FILE = 0, 1, 2, 3, 4  # their types

TABLES = (NULL, SYMTAB, STRTAB, RELA, REL)
RELOCATABLE, VERSION = 1, 1


@dataclass(frozen=True, slots=True)
class Section:
    """`zeros` is the size of one of type NOBITS, which has no content."""

    name: str
    type: int = NULL
    flags: int = 0
    content: bytes = b""
    alignment: int = 1
    zeros: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` is a section's number in the object."""

    name: str
    binding: int = LOCAL
    type: int = NOTYPE
    section: int = UNDEFINED
    value: int = 0
    size: int = 0
    visibility: int = 0


@dataclass(frozen=True, slots=True)
class Relocation:
    """`symbol` is a symbol's number. The addend is None where it stands in the content (REL)."""

    offset: int
    type: int
    symbol: int
    addend: int | None


@dataclass(frozen=True, slots=True)
class Object:
    """Section 0 and symbol 0 mean none. Tables remain as sections of their types without content.
    Local symbols come first. Relocations are grouped by the section that they change."""

    machine: int
    flags: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: Mapping[int, tuple[Relocation, ...]]


class _Form:
    """How a machine's records are laid out: 64-bit ELF with RELA, or 32-bit with REL."""

    def __init__(self, machine: int) -> None:
        self.wide = machine != ARM
        self.file = struct.Struct("<16sHHIQQQIHHHHHH" if self.wide else "<16sHHIIIIIHHHHHH")
        self.section = struct.Struct("<IIQQQQIIQQ" if self.wide else "<10I")
        self.symbol = struct.Struct("<IBBHQQ" if self.wide else "<IIIBBH")
        self.relocation = struct.Struct("<QQq" if self.wide else "<II")
        self.symbol_bits = 32 if self.wide else 8  # where the number begins in a relocation's info

    def read_symbol(self, fields: tuple[int, ...], names: bytes) -> Symbol:
        if self.wide:
            name, info, other, section, value, size = fields
        else:
            name, value, size, info, other, section = fields
        return Symbol(_string(names, name), info >> 4, info & 15, section, value, size, other)

    def symbol_bytes(self, s: Symbol, name: int) -> bytes:
        info = s.binding << 4 | s.type
        if self.wide:
            return self.symbol.pack(name, info, s.visibility, s.section, s.value, s.size)
        return self.symbol.pack(name, s.value, s.size, info, s.visibility, s.section)

    def read_relocation(self, offset: int, info: int, addend: int | None = None) -> Relocation:
        number = info >> self.symbol_bits
        return Relocation(offset, info - (number << self.symbol_bits), number, addend)

    def relocation_bytes(self, r: Relocation) -> bytes:
        info = r.symbol << self.symbol_bits | r.type
        assert (r.addend is not None) == self.wide
        return self.relocation.pack(r.offset, info, *(() if r.addend is None else (r.addend,)))


def read_object(data: bytes) -> Object:
    """The object of these bytes; ValueError for bytes of another form."""
    try:
        return _read(data)
    except (struct.error, IndexError):
        raise ValueError("not an ELF object, or cut off") from None


def _read(data: bytes) -> Object:
    magic, kind, machine = struct.unpack_from("<16sHH", data)
    if magic[:4] != b"\x7fELF" or magic[5] != 1 or kind != RELOCATABLE:
        raise ValueError("not a little-endian relocatable ELF object")
    if machine not in (ARM, X86_64, AARCH64) or magic[4] != 1 + (machine != ARM):
        raise ValueError(f"an ELF object for machine {machine}")
    form = _Form(machine)
    fields = form.file.unpack_from(data)
    table, flags, count, name_section = fields[6], fields[7], fields[12], fields[13]
    headers = [form.section.unpack_from(data, table + n * form.section.size) for n in range(count)]
    contents = [b"" if h[1] == NOBITS else data[h[4] : h[4] + h[5]] for h in headers]
    sections = tuple(
        Section(_string(contents[name_section], h[0]), h[1], h[2],
                b"" if h[1] in TABLES else content, h[8], h[5] if h[1] == NOBITS else 0)
        for h, content in zip(headers, contents, strict=True)
    )  # fmt: skip
    if any(s.alignment > MOST_ALIGNMENT for s in sections):
        raise ValueError(f"a section aligned to more than {MOST_ALIGNMENT} bytes")
    symbols: tuple[Symbol, ...] = ()
    relocations = {}
    for header, content in zip(headers, contents, strict=True):
        kind, link, info = header[1], header[6], header[7]
        if kind == SYMTAB:
            entries = form.symbol.iter_unpack(content)
            symbols = tuple(form.read_symbol(e, contents[link]) for e in entries)
        elif kind == (RELA if form.wide else REL):
            entries = form.relocation.iter_unpack(content)
            relocations[info] = tuple(form.read_relocation(*e) for e in entries)
        elif kind in (REL, RELA):
            raise ValueError(f"relocations of type {kind} for machine {machine}")
    return Object(machine, flags, sections, symbols, relocations)


def without_tables(o: Object) -> tuple[Section, ...]:
    """Sections without the tables that `write_object` makes, which come last."""
    count = 1 + sum(s.type not in TABLES for s in o.sections)
    assert all(s.type in TABLES for s in o.sections[count:])
    return o.sections[:count]


def write_object(o: Object) -> bytes:
    """The object's bytes: its sections, then tables of relocations, symbols and names."""
    form = _Form(o.machine)
    names = _Names()
    symbol_table = len(o.sections) + len(o.relocations)
    symbols = b"".join(form.symbol_bytes(s, names.offset(s.name)) for s in o.symbols)
    local = sum(s.binding == LOCAL for s in o.symbols)
    word = 8 if form.wide else 4
    rows = [  # name, type, flags, content, link, info, alignment, entry size
        (s.name, s.type, s.flags, s.content, 0, 0, s.alignment, 0) for s in o.sections
    ]
    zeros = [s.zeros for s in o.sections]
    for section, entries in o.relocations.items():
        kind, prefix = (RELA, ".rela") if form.wide else (REL, ".rel")
        content = b"".join(map(form.relocation_bytes, entries))
        name, size = prefix + o.sections[section].name, form.relocation.size
        rows.append((name, kind, INFO_LINK, content, symbol_table, section, word, size))
    link = symbol_table + 1
    rows.append((".symtab", SYMTAB, 0, symbols, link, local, word, form.symbol.size))
    for name in (".strtab", *(row[0] for row in rows)):
        names.offset(name)
    rows.append((".strtab", STRTAB, 0, bytes(names.content), 0, 0, 1, 0))

    data = bytearray(form.file.size)
    headers = bytearray()
    for n, (name, kind, flags, content, link, info, alignment, size) in enumerate(rows):
        _pad(data, alignment)
        at = len(data) if kind != NULL else 0
        headers += form.section.pack(
            names.offset(name), kind, flags, 0, at,
            zeros[n] if kind == NOBITS else len(content), link, info,
            alignment if kind != NULL else 0, size,
        )  # fmt: skip
        data += content
    _pad(data, word)
    ident = b"\x7fELF" + bytes((1 + form.wide, 1, VERSION))
    form.file.pack_into(
        data, 0, ident, RELOCATABLE, o.machine, VERSION, 0, 0, len(data), o.flags, form.file.size,
        0, 0, form.section.size, len(rows), len(rows) - 1,
    )  # fmt: skip
    return bytes(data + headers)


class _Names:
    """A growing string table with each name once."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")
        self._offsets = {"": 0}

    def offset(self, name: str) -> int:
        if name not in self._offsets:
            self._offsets[name] = len(self.content)
            self.content += name.encode() + b"\0"
        return self._offsets[name]


def _string(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _pad(data: bytearray, alignment: int) -> None:
    data.extend(bytes(-len(data) % max(alignment, 1)))
