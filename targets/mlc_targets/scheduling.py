"""Which of LLVM's scheduling models each kind of kernel uses.

LLVM orders instructions by a scheduling model. The order decides which values are in registers at
the same time, and so what is spilled and copied. The models are named after CPUs. A kernel takes
the model that serves it best, whatever CPU it is compiled for. A choice holds for the version of
LLVM that it was measured with:

    python scripts/bench/scheduling_models.py

counts the executed instructions of a layer per choice, under the chosen model and under others.
"""

from __future__ import annotations

from dataclasses import dataclass

from .target import Target

LLVM_MAJOR = 22  # the version that the choices were measured with


@dataclass(frozen=True, slots=True)
class Choice:
    """The CPU whose model kernels of an intent take on an architecture, and why.

    only: the one -mcpu that the choice is for; other_than: the one that it is not for; "": none.
    """

    intent: str
    arch: str
    model: str
    why: str
    only: str = ""
    other_than: str = ""


CHOICES = (
    Choice("float", "arm", "cortex-a9", "spills no sums of floats"),
    Choice("quantized", "arm", "cortex-a7", "spills no integers; cortex-a9's model does"),
    Choice(
        "conv2d",
        "aarch64",
        "generic",
        "loads weights late: nothing is copied",
        other_than="generic",
    ),
    Choice(
        "parts", "aarch64", "kryo", "adds up products early; generic's model spills", only="generic"
    ),
    Choice("windows", "aarch64", "exynos-m3", "begins few products before they are added up"),
    Choice("windows", "arm", "kryo", "begins few products before they are added up"),
    Choice("dense_blocks_quads", "aarch64", "neoverse-v2", "ends a row before the next begins"),
    Choice("dense_blocks_squares", "aarch64", "neoverse-v2", "ends a row before the next begins"),
    Choice("taps", "aarch64", "kryo", "leaves the turned weights their registers"),
)


def scheduling_model(intent: str, target: Target) -> str | None:
    """The CPU whose model a kernel of an intent takes; None for the target's own."""
    for choice in CHOICES:
        fits = (choice.intent, choice.arch) == (intent, target.arch)
        if fits and choice.only in ("", target.mcpu) and choice.other_than != target.mcpu:
            return choice.model
    return None
