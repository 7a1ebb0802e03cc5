"""Thread axes of schedules for GPUs, and what a CPU has instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadAxis:
    """A thread axis by its name: "blockIdx.x", "threadIdx.y" …"""

    tag: str
    extent: int | None = None


def thread_axis(dom: int | str | None = None, tag: str = "", name: str = "") -> ThreadAxis:
    """A thread axis of a schedule for GPUs; `bind` says what a CPU has instead."""
    if isinstance(dom, str):
        return ThreadAxis(dom)
    return ThreadAxis(tag, dom)


def no_thread(thread: object) -> tuple[str, str]:
    """(why a loop is not bound to that thread, what to do instead)."""
    tag = str(getattr(thread, "tag", thread))
    if tag.startswith(("threadIdx", "vthread", "cthread")):
        mend = "vectorize the innermost loop, parallel the outermost"
    else:
        mend = "parallel, which shares the iterations of a loop among the board's cores"
    return f"'{tag}' is a thread of a GPU, and kernels here run on CPUs", mend
