"""What a board's system keeps kernels from (mlc_rpc/wire.py, BOX), in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mlc_rpc.wire import BOX

NEEDED = frozenset({"syscalls", "files"})  # without these a model's code can do what its user can


def box_text(held: Collection[str] | None) -> str:
    """syscalls, user; not files, tcp, signals, processes"""
    if held is None:
        return "not known"
    missing = ", ".join(part for part in BOX if part not in held)
    if not held:
        return "nothing"
    return ", ".join(held) + (f"; not {missing}" if missing else "")


def box_facts(held: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """A line for a run on a board whose kernel cannot hold a model's code, as `mlc-runtime run`
    prints it there."""
    if held is not None and not NEEDED.issubset(held):
        missing = ", ".join(part for part in BOX if part not in held)
        yield "sandbox", f"lacks {missing}; try: only models from people you trust"
