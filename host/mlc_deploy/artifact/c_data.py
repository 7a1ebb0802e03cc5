"""A call table as data of an object: the structures in one machine's layout, with a relocation for
each pointer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlc_targets.object_format import Metadata

from ..codegen.elf import AARCH64, ARM, X86_64, Relocation
from .c_table import Field, Pointer, Size, Wide, model_table

POINTER = {ARM: 2, AARCH64: 257, X86_64: 1}  # R_ARM_ABS32, R_AARCH64_ABS64, R_X86_64_64


@dataclass(frozen=True, slots=True)
class Address(Pointer):
    """A pointer to an offset in the table, or to the kernel of that name."""

    offset: int
    kernel: str = ""


class Data:
    """A Table of bytes."""

    def __init__(self, machine: int) -> None:
        self.machine = machine
        self.word = 4 if machine == ARM else 8
        self.content = bytearray()
        self.pointers: list[tuple[int, Address]] = []
        self._texts: dict[str, Address] = {}

    def text(self, text: str) -> Address:
        """A string; equal strings are stored once."""
        if text not in self._texts:
            self._texts[text] = self.data("", text.encode() + b"\0")
        return self._texts[text]

    def kernel(self, name: str) -> Address:
        return Address(0, name)

    def data(self, _: str, content: bytes) -> Address:
        at = len(self.content)
        self.content += content
        return Address(at)

    def array(self, _: str, rows: Sequence[Field]) -> Address:
        """An array, each field of a structure at its C offset."""
        flat = [list(_scalars(row)) for row in rows]
        wide = any(isinstance(field, Wide) for fields in flat for field in fields)
        at = self._align(8 if wide else self.word)
        for fields in flat:
            for field in fields:
                self._add(field)
            self._align(8 if any(isinstance(f, Wide) for f in fields) else self.word)
        return Address(at)

    def relocations(self, table: int, kernels: Mapping[str, int]) -> tuple[Relocation, ...]:
        """table: the number of the symbol at the data's beginning; kernels: of the kernels'."""
        kind = POINTER[self.machine]
        return tuple(
            Relocation(
                at,
                kind,
                kernels[to.kernel] if to.kernel else table,
                None if self.machine == ARM else to.offset,
            )
            for at, to in self.pointers
        )

    def _add(self, field: Field) -> None:
        match field:
            case int():
                self._align(4)
                self.content += (field & 0xFFFFFFFF).to_bytes(4, "little")
            case Size(value):
                self._align(self.word)
                self.content += value.to_bytes(self.word, "little")
            case Wide(value):
                self._align(8)
                self.content += value.to_bytes(8, "little", signed=True)
            case Address():
                at = self._align(self.word)
                self.pointers.append((at, field))
                # 32-bit ARM's relocations add to this value, the others replace it.
                self.content += field.offset.to_bytes(self.word, "little")
            case None:
                self._align(self.word)
                self.content += bytes(self.word)

    def _align(self, alignment: int) -> int:
        self.content += bytes(-len(self.content) % alignment)
        return len(self.content)


def _scalars(field: Field) -> Iterator[Field]:
    """The fields of a structure and of those inside it."""
    if isinstance(field, tuple):
        for inner in field:
            yield from _scalars(inner)
    else:
        yield field


def model_data(machine: int, metadata: Metadata, called: str) -> tuple[Data, int]:
    """An mlc_model after everything it points to, and the model's offset."""
    data = Data(machine)
    fields = model_table(data, metadata, called)
    return data, data.array("", [tuple(fields.values())]).offset
