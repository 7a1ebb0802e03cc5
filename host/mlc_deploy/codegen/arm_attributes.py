"""What an object for 32-bit ARM says about itself in .ARM.attributes (Addenda to the ABI for the
Arm Architecture):

    'A' { length:u32 vendor:string { tag:uleb length:u32 attributes } ... } ...

where a length counts from the beginning of its structure, and an attribute is a tag with a number
or a string. device_runtime/src/arm_abi.c reads the same on the board.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

WHOLE_FILE = 1
CPU_RAW_NAME, CPU_NAME, CPU_ARCH, PROFILE, FP_ARCH, SIMD_ARCH = 4, 5, 6, 7, 10, 12
VFP_ARGS, COMPATIBILITY, DIVIDES = 28, 32, 44
# Denormals and optimisation goals: objects with and without functions differ in these.
OF_FUNCTIONS = (20, 30)
HARD_FLOAT, ANY_FLOAT = 1, 3  # of VFP_ARGS; 0, the default, is soft
V8 = 14  # of CPU_ARCH, from where division is part of it
DIVISION = 2  # of DIVIDES: of ARMv7-A with the extension

# FP_ARCH: the version, and how many registers of 64 bits
FLOATS = {
    0: (0, 0), 1: (1, 16), 2: (2, 16), 3: (3, 32), 4: (3, 16), 5: (4, 32), 6: (4, 16), 7: (8, 32),
    8: (8, 16),
}  # fmt: skip
SIMDS = {1: "NEON", 2: "NEON with fused multiply-add", 3: "NEON of ARMv8", 4: "NEON of ARMv8.1"}
ARCHITECTURES = {
    0: "ARM before v4", 1: "ARMv4", 2: "ARMv4T", 3: "ARMv5T", 4: "ARMv5TE", 5: "ARMv5TEJ",
    6: "ARMv6", 7: "ARMv6KZ", 8: "ARMv6T2", 9: "ARMv6K", 10: "ARMv7", 11: "ARMv6-M",
    12: "ARMv6S-M", 13: "ARMv7E-M", 14: "ARMv8-A", 15: "ARMv8-R", 16: "ARMv8-M baseline",
    17: "ARMv8-M",
}  # fmt: skip
MICROCONTROLLERS = (11, 12, 13, 16, 17)

Attributes = Mapping[int, int]


def attributes_of(section: bytes) -> Attributes:
    """The numbers by tag. Raises ValueError for a section that is cut off."""
    found: dict[int, int] = {}
    if section[:1] != b"A":
        return found
    for vendor in _parts(section[1:]):
        name, _, rest = vendor.partition(b"\0")
        if name != b"aeabi":
            continue
        at = 0
        while at < len(rest):
            tag, begin = _number(rest, at)
            size = int.from_bytes(rest[begin : begin + 4], "little")
            if size < begin + 4 - at:
                raise ValueError("attributes of no length")
            if tag == WHOLE_FILE:
                found.update(_pairs(rest[begin + 4 : at + size]))
            at += size
    return found


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if size < 4:
            raise ValueError("attributes of no length")
        yield data[at + 4 : at + size]
        at += size


def _pairs(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        value = 0
        text = tag in (CPU_RAW_NAME, CPU_NAME) or (tag > COMPATIBILITY and tag % 2 == 1)
        if not text:
            value, at = _number(data, at)
        if text or tag == COMPATIBILITY:
            at = data.index(b"\0", at) + 1
        yield tag, value


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("a number that does not end")


def lacking(has: Attributes, wants: Attributes) -> str | None:
    """What code with attributes `wants` needs and a machine with attributes `has` lacks; None for
    nothing."""
    arch, own = wants.get(CPU_ARCH, 0), has.get(CPU_ARCH, 0)
    if arch in MICROCONTROLLERS or wants.get(PROFILE) == ord("M"):
        return "a microcontroller's instructions"
    if arch > own:
        return ARCHITECTURES.get(arch, f"an architecture of number {arch}")
    version, registers = FLOATS.get(wants.get(FP_ARCH, 0), (99, 99))
    known, enough = FLOATS.get(has.get(FP_ARCH, 0), (0, 0))
    if version > known or registers > enough:
        return f"VFPv{version} with {registers} registers"
    simd = wants.get(SIMD_ARCH, 0)
    if simd > has.get(SIMD_ARCH, 0):
        return SIMDS.get(simd, f"NEON of number {simd}")
    if wants.get(DIVIDES) == DIVISION and has.get(DIVIDES) != DIVISION and own < V8:
        return "integer division (sdiv, udiv)"
    return None
