"""Where producers that are not inlined are computed."""

from __future__ import annotations

from mlc_targets import Target

from ...schedule import Schedule
from ...schedule.tree import is_complete
from .shared import is_untouched


def compute_location(sch: Schedule, block: str, target: Target) -> Schedule:
    """Computes a block before its consumer, or in one of the consumer's loops, what each iteration
    needs.

    For blocks without reduction that no rule has taken yet. A consumer without tiles would gain
    nothing.
    """
    consumers = sch.get_consumers(block)
    if not consumers or not is_untouched(sch, block) or not is_complete(sch.func, sch.block(block)):
        return sch
    if is_untouched(sch, consumers[0]):
        return sch
    place = sch.sample_compute_location(block)
    if isinstance(place, str):
        sch.compute_at(block, place)
    elif place == -2:
        sch.compute_inline(block)
    return sch
