"""Entries of zip archives from outside."""

from __future__ import annotations

from zipfile import ZipInfo


def is_inside(info: ZipInfo, size: int) -> bool:
    """Whether an entry can be in a file of so many bytes. zipfile allocates what an entry is said
    to have."""
    return 0 <= info.header_offset <= size and 0 <= info.compress_size <= size
