"""Objects that the loader refuses, each with the whole message; and limits that it just accepts."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.driver import run_driver
from tests.runtime.elf_objects import (
    ABS,
    ALLOC,
    COMMON,
    EXECINSTR,
    LOCAL,
    NOBITS,
    REL,
    RELA,
    TLS,
    UNDEF,
    WEAK,
    WRITE,
    Object,
    Relocation,
    Section,
    Symbol,
)
from tests.runtime.kernels import Machine, compile_ir

HARD_FLOAT_HINT = "try: -mtriple=armv7a-unknown-linux-gnueabihf"


def load(machine: str, content: bytes, folder: Path) -> str:
    """The loader's message; "" when it loads."""
    path = folder / "object.o"
    path.write_bytes(content)
    result = run_driver(machine, path)
    assert result.returncode == (1 if result.stderr else 0), result
    return result.stderr.decode().rstrip("\n")


def with_relocation(
    machine: str, r: Relocation, content: bytes = bytes(16), **symbol: int
) -> Object:
    """An object with one relocation, to symbol 1 ("f"), in 16 bytes of code."""
    section = Section(content=content, relocations=(r,))
    return Object(machine, (section,), (Symbol("f", **symbol),))


def patched(content: bytes, offset: int, layout: str, value: int) -> bytes:
    data = bytearray(content)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


GOOD = Object("x86_64", (Section(),), (Symbol("f"),)).build()
HEADERS = struct.unpack_from("<Q", GOOD, 40)[0]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm"])
def test_smallest_object_loads(machine: str, tmp_path: Path) -> None:
    assert load(machine, Object(machine, symbols=(Symbol("f"),)).build(), tmp_path) == ""


FILES = {
    "empty": (b"", "object ends inside its file header; try: send it again"),
    "no_elf": (
        b"<html>" + bytes(100),
        'object is not an ELF file; try: what lib.save("name.o") wrote',
    ),
    "big_endian": (
        patched(GOOD, 5, "B", 2),
        "object is not a little-endian ELF file of 32 or 64 bits",
    ),
    "executable": (
        patched(GOOD, 16, "<H", 2),
        "object is ELF of type 2, not relocatable (1); try: an unlinked .o file",
    ),
    "header_size": (patched(GOOD, 58, "<H", 40), "object's section headers have 40 bytes, not 64"),
    "headers_beyond": (
        patched(GOOD, 40, "<Q", 1 << 63),
        "object ends before its section headers; try: send it again",
    ),
    "cut_in_headers": (
        GOOD[: HEADERS + 3 * 64 + 20],
        "object ends inside its section header 3; try: send it again",
    ),
    "section_beyond": (
        patched(GOOD, HEADERS + 64 + 24, "<Q", 1 << 40),
        "object ends inside section 1; try: send it again",
    ),
    "section_overflow": (
        patched(GOOD, HEADERS + 64 + 32, "<Q", 2**64 - 1),
        "object ends inside section 1; try: send it again",
    ),
    "no_string_table": (
        patched(GOOD, HEADERS + 2 * 64 + 40, "<I", 1),
        "symbol table has no proper string table",
    ),
    "link_beyond": (
        patched(GOOD, HEADERS + 2 * 64 + 40, "<I", 77),
        "object refers to section 77, but has 4",
    ),
    "first_global": (
        patched(GOOD, HEADERS + 2 * 64 + 44, "<I", 3),
        "symbol table has 2 entries, the first global one 3",
    ),
    "symbol_entry": (
        Object(entry_size=16).build(),
        "section 2 is a table with entries of 16 bytes, not 24",
    ),
    "riscv": (
        Object("riscv").build(),
        "object is for ELF machine 243, this board runs x86_64; try: a target for x86_64",
    ),
    "aarch64": (
        Object("aarch64").build(),
        "object is for aarch64, this board runs x86_64; try: a target for x86_64",
    ),
    "arm": (
        Object("arm").build(),
        "object is for arm, this board runs x86_64; try: a target for x86_64",
    ),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES)
def test_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    assert load("x86_64", content, tmp_path) == message


SECTIONS = {
    "writable_code": (
        Section(".text", flags=ALLOC | WRITE | EXECINSTR),
        "section '.text' is both writable and executable",
    ),
    "thread_local": (
        Section(".tdata", flags=ALLOC | WRITE | TLS),
        "section '.tdata' is thread-local, which is not supported",
    ),
    "compressed": (
        Section(".data", flags=ALLOC | 0x800),
        "section '.data' is compressed, which is not supported",
    ),
    "constructors": (
        Section(".init_array", type=14, flags=ALLOC | WRITE),
        "section '.init_array' of type 14 is not supported",
    ),
    "packed_relocations": (
        Section(".crel", type=0x40000014, flags=0),
        "section '.crel' of type 1073741844 is not supported",
    ),
    "alignment": (
        Section(".data", alignment=8192),
        "section '.data' has alignment 8192, not a power of two up to 4096",
    ),
    "odd_alignment": (
        Section(".data", alignment=24),
        "section '.data' has alignment 24, not a power of two up to 4096",
    ),
    "too_big": (
        Section(".bss", type=NOBITS, flags=ALLOC | WRITE, size=(64 << 20) + 1),
        "object needs more than 64 MB of memory; try: smaller modules",
    ),
    "far_too_big": (
        Section(".bss", type=NOBITS, flags=ALLOC | WRITE, size=2**64 - 1),
        "object needs more than 64 MB of memory; try: smaller modules",
    ),
    "terminal_escapes": (
        Section("\x1b[2J\xe4", flags=ALLOC | TLS),
        "section '?[2J?' is thread-local, which is not supported",
    ),
}


@pytest.mark.parametrize(("section", "message"), SECTIONS.values(), ids=SECTIONS)
def test_section_is_refused(section: Section, message: str, tmp_path: Path) -> None:
    assert load("x86_64", Object(sections=(section,)).build(), tmp_path) == message


def test_object_without_code_or_data_is_refused(tmp_path: Path) -> None:
    content = Object(sections=(Section(".comment", flags=0),)).build()
    assert load("x86_64", content, tmp_path) == "object has neither code nor data"


CALL = Relocation(4, 1)  # R_X86_64_PLT32
SYMBOLS = {
    "undefined": (Symbol("foo", UNDEF), "undefined symbol 'foo'"),
    "undefined_local": (Symbol("foo", UNDEF, binding=LOCAL), "undefined symbol 'foo'"),
    "thread_local": (
        Symbol("foo", type=6),
        "symbol 'foo' is thread-local, which is not supported",
    ),
    "indirect": (
        Symbol("foo", type=10),
        "symbol 'foo' is an indirect function, which is not supported",
    ),
    "common": (
        Symbol("foo", COMMON, 4),
        "symbol 'foo' is common, which is not supported; try: -fno-common",
    ),
    "reserved": (Symbol("foo", 0xFFFF), "symbol 'foo' is in section 65535, which is reserved"),
    "no_such_section": (Symbol("foo", 99), "object refers to section 99, but has 6"),
    "not_loaded": (
        Symbol("foo", 2),
        "symbol 'foo' is in section '.comment', which is not loaded",
    ),
    "beyond": (
        Symbol("foo", 1, value=17),
        "symbol 'foo' is beyond the end of its section '.text'",
    ),
}


@pytest.mark.parametrize(("symbol", "message"), SYMBOLS.values(), ids=SYMBOLS)
def test_symbol_is_refused(symbol: Symbol, message: str, tmp_path: Path) -> None:
    sections = (Section(relocations=(CALL,)), Section(".comment", flags=0))
    assert load("x86_64", Object("x86_64", sections, (symbol,)).build(), tmp_path) == message


def test_symbol_number_beyond_the_table_is_refused(tmp_path: Path) -> None:
    content = with_relocation("x86_64", Relocation(4, 7)).build()
    assert load("x86_64", content, tmp_path) == "object refers to symbol 7, but has 2"


def test_weak_undefined_symbol_is_null(tmp_path: Path) -> None:
    weak = with_relocation("x86_64", Relocation(1, 1), section=UNDEF, binding=WEAK)
    assert load("x86_64", weak.build(), tmp_path) == ""


IN_TEXT = "in section .text at 0x0, symbol 'f'"
BL_ARM = struct.pack("<I", 0xEBFFFFFE)
B_ARM = struct.pack("<I", 0xEAFFFFFE)
BL_THUMB = struct.pack("<HH", 0xF7FF, 0xFFFE)
B_THUMB = struct.pack("<HH", 0xF7FF, 0xBFFE)
FAR = {"section": ABS, "value": 0x7000_0000}
RELOCATIONS = {
    "x86_unknown": ("x86_64", Relocation(123, 1), {}, "type 123 is not supported"),
    "x86_tls": ("x86_64", Relocation(23, 1), {}, "type 23 is not supported"),
    "x86_pc32": (
        "x86_64",
        Relocation(2, 1),
        {"section": ABS, "value": 1 << 40},
        "type 2 is out of range",
    ),
    "x86_32": ("x86_64", Relocation(10, 1, addend=-(1 << 31)), {}, "type 10 is out of range"),
    "x86_32s": ("x86_64", Relocation(11, 1, addend=1 << 31), {}, "type 11 is out of range"),
    "x86_got": ("x86_64", Relocation(9, 1), {"binding": LOCAL}, "type 9 needs a global symbol"),
    "a64_unknown": ("aarch64", Relocation(600, 1), {}, "type 600 is not supported"),
    "a64_tls": ("aarch64", Relocation(541, 1), {}, "type 541 is not supported"),
    "a64_call": ("aarch64", Relocation(283, 1, addend=1 << 27), {}, "type 283 is out of range"),
    "a64_call_odd": ("aarch64", Relocation(283, 1, addend=2), {}, "type 283 is misaligned"),
    "a64_adrp": ("aarch64", Relocation(275, 1, addend=1 << 33), {}, "type 275 is out of range"),
    "a64_ldst16": ("aarch64", Relocation(284, 1, addend=1), {}, "type 284 is misaligned"),
    "a64_ldst32": ("aarch64", Relocation(285, 1, addend=2), {}, "type 285 is misaligned"),
    "a64_ldst64": ("aarch64", Relocation(286, 1, addend=4), {}, "type 286 is misaligned"),
    "a64_ldst128": ("aarch64", Relocation(299, 1, addend=8), {}, "type 299 is misaligned"),
    "a64_movw_g0": ("aarch64", Relocation(263, 1), {}, "type 263 is out of range"),
    "a64_abs32": ("aarch64", Relocation(258, 1, addend=-(1 << 63)), {}, "type 258 is out of range"),
    "a64_got": (
        "aarch64",
        Relocation(311, 1),
        {"binding": LOCAL},
        "type 311 needs a global symbol",
    ),
    "a64_gotpage": (
        "aarch64",
        Relocation(313, 1),
        {"binding": LOCAL},
        "type 313 needs a global symbol",
    ),
    "arm_got_brel": ("arm", Relocation(26, 1), {"binding": LOCAL}, "type 26 needs a global symbol"),
    "arm_unknown": ("arm", Relocation(123, 1), {}, "type 123 is not supported"),
    "arm_tls": ("arm", Relocation(104, 1), {}, "type 104 is not supported"),
    "arm_call": ("arm", Relocation(28, 1), FAR, "type 28 is out of range"),
    "arm_call_odd": ("arm", Relocation(28, 1), {"value": 2}, "type 28 is misaligned"),
    "arm_got": ("arm", Relocation(96, 1), {"binding": LOCAL}, "type 96 needs a global symbol"),
    "thumb_call": ("arm", Relocation(10, 1), FAR, "type 10 is out of range"),
    "thumb_call_odd": ("arm", Relocation(10, 1), {"value": 2}, "type 10 is misaligned"),
    "arm_jump_to_thumb": (
        "arm",
        Relocation(29, 1),
        {"value": 1, "binding": LOCAL},
        "type 29 branches between ARM and Thumb code without a link",
    ),
    "thumb_jump_to_arm": (
        "arm",
        Relocation(30, 1),
        {"binding": LOCAL},
        "type 30 branches between ARM and Thumb code without a link",
    ),
}
CONTENT = {28: BL_ARM, 29: B_ARM, 10: BL_THUMB, 30: B_THUMB}


@pytest.mark.parametrize(
    ("machine", "relocation", "symbol", "message"), RELOCATIONS.values(), ids=RELOCATIONS
)
def test_relocation_is_refused(
    machine: str, relocation: Relocation, symbol: dict[str, int], message: str, tmp_path: Path
) -> None:
    code = CONTENT.get(relocation.type, b"").ljust(16, b"\0")
    content = with_relocation(machine, relocation, code, **symbol).build()
    assert load(machine, content, tmp_path) == f"relocation {message} {IN_TEXT}"


@pytest.mark.parametrize(
    ("machine", "kind", "offset"),
    [
        ("x86_64", 1, 9),
        ("x86_64", 2, 13),
        ("aarch64", 257, 9),
        ("aarch64", 283, 13),
        ("arm", 2, 13),
    ],
)
def test_relocation_past_its_section_is_refused(
    machine: str, kind: int, offset: int, tmp_path: Path
) -> None:
    content = with_relocation(machine, Relocation(kind, 1, offset)).build()
    assert load(machine, content, tmp_path) == (
        f"relocation type {kind} runs past the end in section .text at 0x{offset:x}, symbol 'f'"
    )
    content = with_relocation(machine, Relocation(kind, 1, 17)).build()
    message = "relocation at 0x11 is beyond the end of section '.text'"
    assert load(machine, content, tmp_path) == message


def test_wrong_form_of_relocations_is_refused(tmp_path: Path) -> None:
    for machine, kind, form in (("x86_64", REL, "REL, not RELA"), ("arm", RELA, "RELA, not REL")):
        wrong = replace(with_relocation(machine, Relocation(2, 1)), reloc_type=kind).build()
        message = f"section '.text' has relocations of the form {form}"
        assert load(machine, wrong, tmp_path) == message


def test_soft_float_object_is_refused(tmp_path: Path) -> None:
    """A triple of three parts makes LLVM choose this calling convention without a word."""
    ir = "define float @f(float %x) nounwind { ret float %x }"
    content = compile_ir(Machine("", "arm", "armv7-linux-gnueabihf"), ir)
    assert load("arm", content, tmp_path) == (
        "object has the soft-float calling convention, this board runs the hard-float one; "
        + HARD_FLOAT_HINT
    )


@pytest.mark.parametrize("attributes", [None, b"", b"A", b"A\xff\xff\xff\xff", b"B1234"])
def test_arm_object_without_attributes_is_refused(attributes: bytes | None, tmp_path: Path) -> None:
    content = Object("arm", arm_attributes=attributes).build()
    assert load("arm", content, tmp_path) == (
        "object has the soft-float calling convention, this board runs the hard-float one; "
        + HARD_FLOAT_HINT
    )


def test_old_arm_abi_is_refused(tmp_path: Path) -> None:
    message = f"object is of ARM EABI version 4, this board runs version 5; {HARD_FLOAT_HINT}"
    assert load("arm", Object("arm", flags=0x04000000).build(), tmp_path) == message
