"""Writes relocatable ELF objects field by field, so that tests can make each one wrong at will."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

MACHINE_NUMBERS = {"arm": 40, "x86_64": 62, "aarch64": 183, "riscv": 243}
NULL, PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL, ATTRIBUTES = 0, 1, 2, 3, 4, 8, 9, 0x70000003
WRITE, ALLOC, EXECINSTR, TLS = 1, 2, 4, 0x400
UNDEF, ABS, COMMON = 0, 0xFFF1, 0xFFF2
LOCAL, GLOBAL, WEAK = 0, 1, 2

# 'A', one vendor "aeabi", the file's attributes: Tag_CPU_name "7", Tag_ABI_VFP_args 1.
HARD_FLOAT = (
    b"A" + struct.pack("<I", 4 + 6 + 5 + 5) + b"aeabi\0"
    b"\x01" + struct.pack("<I", 5 + 5) + b"\x05" + b"7\0" + b"\x1c\x01"
)  # fmt: skip


@dataclass(frozen=True)
class Relocation:
    type: int
    symbol: int
    offset: int = 0
    addend: int = 0


@dataclass(frozen=True)
class Section:
    name: str = ".text"
    content: bytes = bytes(16)
    type: int = PROGBITS
    flags: int = ALLOC | EXECINSTR
    alignment: int = 4
    size: int | None = None  # where it shall differ from the content's
    relocations: tuple[Relocation, ...] = ()


@dataclass(frozen=True)
class Symbol:
    """`section` counts from 1, in the order of the object's sections."""

    name: str
    section: int = 1
    value: int = 0
    binding: int = GLOBAL
    type: int = 2


@dataclass(frozen=True)
class Object:
    machine: str = "x86_64"
    sections: tuple[Section, ...] = (Section(),)
    symbols: tuple[Symbol, ...] = ()  # the local ones first
    flags: int | None = None
    arm_attributes: bytes | None = HARD_FLOAT
    reloc_type: int | None = None
    entry_size: int | None = None  # of the symbol table
    names: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    @property
    def wide(self) -> bool:
        return self.machine != "arm"

    def name(self, text: str) -> int:
        self.names.extend(text.encode("latin-1") + b"\0")
        return len(self.names) - len(text) - 1

    def symbol(self, s: Symbol) -> bytes:
        name, info = self.name(s.name), s.binding << 4 | s.type
        if self.wide:
            return struct.pack("<IBBHQQ", name, info, 0, s.section, s.value, 0)
        return struct.pack("<IIIBBH", name, s.value, 0, info, 0, s.section)

    @property
    def with_addends(self) -> bool:
        return (self.reloc_type or (RELA if self.wide else REL)) == RELA

    def relocation(self, r: Relocation) -> bytes:
        word, shift = ("Q", 32) if self.wide else ("I", 8)
        fields = (r.offset, r.symbol << shift | r.type)
        if self.with_addends:
            return struct.pack(f"<{word}{word}{word.lower()}", *fields, r.addend)
        return struct.pack(f"<{word}{word}", *fields)

    def build(self) -> bytes:
        """Header, contents, section headers: none, the sections, their relocations, attributes,
        symbol table, string table."""
        content = bytearray(64 if self.wide else 52)
        headers = [bytes(64 if self.wide else 40)]
        tables = [(i, s) for i, s in enumerate(self.sections, 1) if s.relocations]
        attributes = self.machine == "arm" and self.arm_attributes is not None
        symtab = 1 + len(self.sections) + len(tables) + attributes

        def add(name: str, kind: int, flags: int, data: bytes, **more: int) -> None:
            while len(content) % 8:
                content.append(0)
            offset, size = len(content), more.get("size", len(data))
            content.extend(data)
            link, info = more.get("link", 0), more.get("info", 0)
            align, entry = more.get("align", 1), more.get("entry", 0)
            layout = "<IIQQQQIIQQ" if self.wide else "<IIIIIIIIII"
            headers.append(
                struct.pack(layout, self.name(name), kind, flags, 0, offset, size, link, info,
                            align, entry)
            )  # fmt: skip

        for s in self.sections:
            size = len(s.content) if s.size is None else s.size
            data = b"" if s.type == NOBITS else s.content
            add(s.name, s.type, s.flags, data, size=size, align=s.alignment)
        kind = RELA if self.with_addends else REL
        for index, s in tables:
            entries = [self.relocation(r) for r in s.relocations]
            data, entry = b"".join(entries), len(entries[0])
            add(".rel" + s.name, kind, 0, data, link=symtab, info=index, entry=entry)
        if attributes and self.arm_attributes is not None:
            add(".ARM.attributes", ATTRIBUTES, 0, self.arm_attributes)
        entry = 24 if self.wide else 16
        data = bytes(entry) + b"".join(map(self.symbol, self.symbols))
        local = 1 + sum(s.binding == LOCAL for s in self.symbols)
        entry = self.entry_size or entry
        add(".symtab", SYMTAB, 0, data, link=symtab + 1, info=local, entry=entry)
        add(".strtab", STRTAB, 0, bytes(self.names) + b".strtab\0")  # its own name comes last

        ident = b"\x7fELF" + bytes([2 if self.wide else 1, 1, 1]) + bytes(9)
        flags = self.flags if self.flags is not None else 0x05000000 if self.machine == "arm" else 0
        rest = (64 if self.wide else 52, 0, 0, len(headers[0]), len(headers))
        layout = "<HHIQQQIHHHHHH" if self.wide else "<HHIIIIIHHHHHH"
        content[: 64 if self.wide else 52] = ident + struct.pack(
            layout, 1, MACHINE_NUMBERS[self.machine], 1, 0, 0, len(content), flags, *rest,
            len(headers) - 1,
        )  # fmt: skip
        return bytes(content) + b"".join(headers)
