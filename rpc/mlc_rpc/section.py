"""One section of an ELF object: what an object says of itself, read where it was made."""

from __future__ import annotations

import struct

Buffer = bytes | memoryview
METADATA_SECTION = ".mlc"  # mlc_abi.h


def section_of(elf: Buffer, name: str) -> bytes:
    """Content of the first section of that name, of a little-endian object of 32 or 64 bits.

    Raises ValueError, saying what is wrong with the object.
    """
    data = memoryview(elf)
    if bytes(data[:4]) != b"\x7fELF" or len(data) < 64 or data[5] != 1 or data[4] not in (1, 2):
        raise ValueError("it is no little-endian ELF object")
    wide = data[4] == 2
    try:
        (table,) = struct.unpack_from("<Q" if wide else "<I", data, 40 if wide else 32)
        size, count, names = struct.unpack_from("<HHH", data, 58 if wide else 46)
        row = struct.Struct("<IIQQQQ" if wide else "<IIIIII")
        if size < row.size:
            raise ValueError("its section headers are too short")
        rows = [row.unpack_from(data, table + n * size) for n in range(count)]
        strings = _content(data, rows[names])
        for found in rows[1:]:
            if strings[found[0] : strings.index(b"\0", found[0])] == name.encode():
                return _content(data, found)
    except (struct.error, IndexError, OverflowError):
        raise ValueError("its section headers lie outside it") from None
    raise ValueError(f"it has no section '{name}'")


def _content(data: memoryview, row: tuple[int, ...]) -> bytes:
    """Of a section by its header: name, type, flags, address, offset, size."""
    if row[4] + row[5] > len(data):
        raise ValueError("a section lies outside it")
    return bytes(data[row[4] : row[4] + row[5]])
