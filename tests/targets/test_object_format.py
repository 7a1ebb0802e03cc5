"""The object format, against the C header that says the same and the reader in C."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from mlc_targets import object_format as form

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "device_runtime" / "include" / "mlc_abi.h").read_text()
SOURCES = ROOT / "device_runtime" / "src"
READER = "".join((SOURCES / name).read_text() for name in ("module.c", "model.c"))


def test_constants() -> None:
    defined = dict(re.findall(r"^#define MLC_(\w+) (\S+)$", HEADER, re.MULTILINE))
    assert defined == {
        "ABI_VERSION": str(form.ABI_VERSION),
        "ALIGNMENT": str(form.ALIGNMENT),
        "SECTION": f'"{form.METADATA_SECTION}"',
    }


def test_most_operands() -> None:
    header = (ROOT / "device_runtime" / "include" / "mlc_runtime.h").read_text()
    assert f"MLC_MAX_OPERANDS = {form.MAX_OPERANDS}," in header


def test_spaces() -> None:
    (listed,) = re.findall(r"^enum mlc_space \{(.*)\};$", HEADER, re.MULTILINE)
    expected = (f"MLC_{name.upper()} = {n}" for n, name in enumerate(form.SPACES))
    assert [row.strip() for row in listed.split(",")] == list(expected)


FOR_CLIENTS = ("extents", "open")  # which say in what shapes arrays come and go; boards see bytes


@pytest.mark.parametrize(
    ("map_", "begin", "end"),
    [
        (form.MetadataMap, '"abi"', '"params"'),
        (form.KernelMap, '"name": str (the symbol)', '"model"  '),
        (form.ModelMap, '"inputs"', "*/"),
        (form.ParamMap, '"params"', '"arena"'),
    ],
)
def test_names(map_: type, begin: str, end: str) -> None:
    """Every name of a map stands in the header where it describes that map, and the reader in C
    knows it."""
    start = HEADER.index(begin)
    text = HEADER[start : HEADER.index(end, start)]
    for name in get_type_hints(map_):
        assert f'"{name}"' in text or name == "model", name
        assert f', "{name}")' in READER or name in FOR_CLIENTS, name


def test_the_reader_knows_no_other_names() -> None:
    maps = (form.MetadataMap, form.KernelMap, form.ModelMap, form.ParamMap)
    known = {name for map_ in maps for name in get_type_hints(map_)}
    assert set(re.findall(r'bytes_are\(key, "(\w+)"\)', READER)) <= known
