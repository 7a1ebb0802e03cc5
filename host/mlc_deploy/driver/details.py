"""The details of a model in a record: where its tensors lie and for how long, which call reads
which tensor, and the kernels as text.

`details`, as JSON:

    calls      for each layer of the record, in the same order: reads, writes [tensor, by number],
               traffic_bytes (everything it reads and writes, counted once), weights_bytes;
               null for a saved model: operators [name], implementation (also null for a
               function on the host), multiply_accumulates
    tensors    name, space ("arena", "input", "output"), offset, bytes, begin, end: the first and
               the last call during which it occupies its memory, by number. -1 is before the first
               call, the number of calls after the last. A tensor overwritten by its last reader
               ends before that call
    arena      bytes, least_bytes (a lower bound for every plan; null for a saved model)
    kernels    name -> loops, assembly; null for a saved model
    loops      whether the model has loops or branches: lifetimes are then of one iteration, and
               both branches count

driver/flow.py computes reads, writes and lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..artifact import SavedModel
from .deployment import Deployable, described_model, host_calls_of, layers_of
from .flow import Flow, accesses_of

if TYPE_CHECKING:
    from .compile import CompiledModel


def details(model: Deployable) -> dict[str, Any]:
    """The details of a model, as JSON. Compiles its kernels again for their text, except cached
    ones. Raises what `compile` raises."""
    described = described_model(model)
    hosts = host_calls_of(model)
    accesses = accesses_of(model.metadata, hosts)
    flow = Flow(described, accesses, [host.at_call for host in hosts])
    made = _compiled(model) if not isinstance(model, SavedModel) else {}
    nothing = dict.fromkeys(("operators", "implementation", "multiply_accumulates"))
    about = made.get("calls") or [nothing] * len(accesses)
    return {
        "calls": [
            {
                "reads": list(reads),
                "writes": list(writes),
                "traffic_bytes": sum(r.size for r in {*access.reads, *access.writes}),
                "weights_bytes": sum(r.size for r in {*access.reads} if r.memory[0] == "weights"),
                **more,
            }
            for access, reads, writes, more in zip(
                accesses, flow.reads, flow.writes, about, strict=True
            )
        ],
        "tensors": [
            {
                "name": t.name,
                "space": t.region.memory[0],
                "offset": t.region.begin,
                "bytes": t.region.size,
                "begin": t.begin,
                "end": t.end,
            }
            for t in flow.tensors
        ],
        "arena": {"bytes": described.arena_bytes, "least_bytes": made.get("least_bytes")},
        "kernels": made.get("kernels"),
        "loops": bool(described.procedures),
    }


def _compiled(model: CompiledModel) -> dict[str, Any]:
    """The details that only a compiled model has."""
    from ..graph.count import multiply_accumulates, names_of  # here: a saved model needs neither
    from ..graph.lower import unscheduled
    from .kernels import layers_by_kernel, source_texts

    program, target = model.program, model.target
    plans = {name: unscheduled(s, target).plan for name, s in program.kernels.items()}
    texts = source_texts(program.kernels, target, layers_by_kernel(program))
    calls = [
        {
            "operators": list(names_of(binding)),
            "implementation": _implementation(layer, plans),
            "multiply_accumulates": multiply_accumulates(binding),
        }
        for binding, layer in zip(program.bindings, layers_of(model), strict=True)
    ]
    return {
        "calls": calls,
        "least_bytes": program.arena_lower_bound,
        "kernels": {name: asdict(text) for name, text in texts.items()},
    }


def _implementation(layer: Any, plans: Mapping[str, Any]) -> str | None:
    if layer.on_host:
        return None
    plan = plans[layer.kernel]
    return plan.name if plan else "default schedule"
