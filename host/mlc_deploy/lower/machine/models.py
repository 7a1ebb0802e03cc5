"""Choice of the scheduling model by which LLVM orders a kernel's instructions."""

from __future__ import annotations

from mlc_targets.scheduling import scheduling_model

from ...ir import TUNE_CPU, PrimFunc, with_fields
from ...passes.context import required
from .target import target_of


@required
def choose_scheduling_model(func: PrimFunc) -> PrimFunc:
    """Sets the attribute TUNE_CPU from the table of targets, unless the schedule has set it.

    Required: without it LLVM takes the target's own model, and aborts where that model lacks
    instructions, as those of the Cortex-A57 and A72 do in 32-bit state.
    """
    target = target_of(func)
    if target is None or TUNE_CPU in func.attrs or not target.has("neon"):
        return func
    quantized = any(b.dtype in ("int8", "uint8") for b in func.buffers)
    model = scheduling_model("quantized" if quantized else "float", target)
    return func if model is None else with_fields(func, attrs={**func.attrs, TUNE_CPU: model})
