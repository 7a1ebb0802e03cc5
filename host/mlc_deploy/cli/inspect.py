"""`mlc-deploy inspect MODEL`: a model's operators and memory, and how its kernels compute."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.table import Table

from mlc_targets import Target

from ..driver.model_graph import ModelGraph, graph_steps, model_graph
from ..files.outside import name_of
from ..graph import Binding, Function, GraphProgram, lower_graph
from ..graph.count import multiply_accumulates, names_of, operators, parameters
from ..graph.lower import unscheduled
from ..graph.nodes import Call, CallPacked, Constant
from ..graph.scalars import at_most
from ..ops.explain import Candidate, explain
from .help import COMPILING, OUTPUTS, command, grouped
from .json_file import JsonFile
from .options import (
    DB_HELP,
    DEBUG,
    JSON_HELP,
    TARGET_HELP,
    Reading,
    one_level,
    reads_models,
    source_file,
)
from .progress import Progress
from .tables import (
    Record,
    add_row,
    bytes_text,
    console_for,
    count_text,
    line,
    plain_table,
    print_facts,
    tell,
    tensor_text,
)

if TYPE_CHECKING:
    from ..tuned import Database

CHOOSES = "choose_plans"  # the pass that decides how operators are computed
DEFAULT = "default schedule"


@command(examples=("mlc-deploy inspect model.onnx --target raspberry-pi/4b",))
@click.argument("model", required=False)
@reads_models
@grouped(COMPILING, "--target", metavar="T", help=f"{TARGET_HELP} (default: this machine)")
@grouped(COMPILING, "--db", metavar="FILE", help=DB_HELP)
@grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP)
@grouped(OUTPUTS, "--passes", is_flag=True, help="Print the graph after each pass that changes it")
@DEBUG
def inspect(
    model: str | None,
    target: str | None,
    reading: Reading,
    db: str | None,
    json_file: str | None,
    passes: bool,
) -> int:
    """Show a model's operators, memory and kernels.

    MODEL is an .onnx, .tflite or .pt2 file (default: the model that ships with the package). The
    tables show operators, parameters, multiply-accumulates and memory, and the kernel chosen for
    each operator. Nothing is compiled.
    """
    path = source_file(model, ("inspect",))
    to_json = JsonFile(json_file, (model, db))
    wanted = one_level(target or "host", "inspect looks at")
    stream = to_json.beside
    ran: list[Record] = []
    plain: list[Function] = []  # the graphs before plans were chosen; the last one is used

    def watch(name: str, function: Function, changed: bool) -> None:
        if name != CHOOSES and all(step["name"] != CHOOSES for step in ran):
            plain.append(function)
        ran.append({"name": name, "changed": changed, "calls": len(function.bindings)})
        say(f"{len(ran)} of {len(graph_steps(wanted, reading.rest)) + 1} passes, after {name}")
        if passes and changed:
            tell(f"# after {name}\n{function.script()}\n", stream)

    how = known = None
    if db is not None:
        from ..tuned import existing, known_layouts  # here: most runs need no database

        known = existing(db)
        how = partial(known_layouts, known, target=wanted, precision=reading.precision)
    with Progress(False).stage("inspect", kept=False) as say:
        graphs = model_graph(path, wanted, watch=watch, layouts=how, **reading.arguments)
    record = inspected(graphs, plain[-1], wanted, name_of(path), known)
    record |= {"precision": reading.precision, "passes": ran}
    show(record, stream)
    for note in record["notes"]:
        Progress(False).warn(note)
    to_json.write(record)
    return 0


# ---------------------------------------------------------------------------------- the record


def inspected(
    graphs: ModelGraph, plain: Function, target: Target, name: str, known: Database | None = None
) -> Record:
    """The record of a model, ready for JSON; sizes in bytes. plain: the graph before a pass chose
    layouts. known: the database of tuning; `notes` names the results that cannot be used.

    operators: name -> how often it is called in the model, and in its kernels. kernels: per call,
    the layer, the operators that became the kernel, its output and its costs; `implementation` is
    how it computes, `tuned` whether tuning found its schedule, and `candidates` the target's
    implementations, best first: name, what it needs, and whether the layer fits.
    """
    program = lower_graph(graphs.optimized, graphs.module)
    before, after = operators(graphs.reference), operators(graphs.optimized)
    found: Container[str] = ()
    notes: tuple[str, ...] = ()
    if known is not None:
        from ..tuned import tuned

        of_db = tuned(program.kernels, target, known)
        found, notes = of_db.found, of_db.notes
    most, largest = dict(graphs.reference.extents), at_most(graphs.reference)
    kernels = _kernels(program, _candidates(plain, target), found, target)
    return {
        "model": name,
        "target": str(target),
        "inputs": [_tensor(v.name, v.type) for v in graphs.reference.params if v.name not in most],
        "outputs": [
            _tensor(n, v.type)
            for n, v in zip(graphs.reference.output_names, graphs.reference.outputs, strict=True)
            if n not in most
        ],
        "extents": most,
        "parameters": parameters(graphs.reference),
        "multiply_accumulates": sum(map(multiply_accumulates, largest.bindings)),
        "weights_bytes": len(program.weights),
        "arena_bytes": program.arena,
        "arena_lower_bound_bytes": program.arena_lower_bound,
        "operators": {
            op: {"model": before[op], "kernels": after[op]} for op in sorted(before | after)
        },
        "calls": len(kernels),
        "distinct_kernels": len(program.kernels),
        "kernels": kernels,
        "notes": list(notes),
    }


def _tensor(name: str, t: Any) -> Record:
    shape = [n if isinstance(n, int) else str(n) for n in t.shape]
    return {"name": name, "shape": shape, "dtype": t.dtype}


def _candidates(plain: Function, target: Target) -> dict[str, tuple[Candidate, ...]]:
    """The target's implementations of each layer's operator; layers without any are left out."""
    found: dict[str, tuple[Candidate, ...]] = {}
    for binding in plain.bindings:
        call = binding.call
        if isinstance(call, Call):
            types = [a.type for a in call.args]
            candidates = explain(call.op, types, call.attrs, target)
            if candidates:
                found.setdefault(binding.source, candidates)
    return found


def _kernels(
    program: GraphProgram,
    candidates: Mapping[str, Sequence[Candidate]],
    tuned: Container[str],
    target: Target,
) -> list[Record]:
    """Per call, in order. Calls of registered functions run on the host and have no kernel."""
    calls = iter(program.calls)
    external = iter(program.externals)
    found: list[Record] = []
    for binding in program.bindings:
        kernel, taken = None, None
        if isinstance(binding.call, CallPacked):
            layer = next(external).layer
        else:
            call = next(calls)
            layer, kernel = call.layer, call.kernel
            plan = unscheduled(program.kernels[kernel], target).plan
            taken = plan.name if plan else DEFAULT
        out = binding.outputs[0].type
        found.append(
            {
                "layer": layer,
                "kernel": kernel,
                "operators": list(names_of(binding)),
                "shape": list(out.shape),
                "dtype": out.dtype,
                "multiply_accumulates": multiply_accumulates(binding),
                "weights_bytes": _weights(binding),
                "implementation": taken,
                "tuned": kernel in tuned,
                "candidates": [asdict(c) for c in candidates.get(layer, ())],
            }
        )
    return found


def _weights(binding: Binding) -> int:
    return sum(a.type.bytes for a in binding.call.args if isinstance(a, Constant))


# ---------------------------------------------------------------------------------- for people


def show(record: Record, stream: TextIO) -> None:
    """Prints the record as tables."""
    console = console_for(stream)
    title = f"{record['model']} for {Target(record['target']).short_name}"
    console.print(line(title, "bold"))
    console.print()
    counts = plain_table(("operator", False), ("in the model", True), ("in kernels", True))
    for name, of in record["operators"].items():
        add_row(counts, name, *(str(of[key]) if of[key] else "" for key in ("model", "kernels")))
    console.print(counts)
    console.print()
    names = (("layer", False), ("one kernel of", False), ("output", False), ("by", False))
    numbers = (("multiply-accumulates", True), ("share", True), ("weights", True))
    layers = plain_table(*names, *numbers)
    total = sum(k["multiply_accumulates"] for k in record["kernels"])
    for kernel in record["kernels"]:
        macs = kernel["multiply_accumulates"]
        add_row(
            layers, kernel["layer"], together(kernel["operators"]), tensor_text(kernel),
            f"{kernel['implementation'] or 'this machine'}{', tuned' if kernel['tuned'] else ''}",
            f"{macs:,}" if macs else "", f"{macs / total:.1%}" if macs else "",
            bytes_text(kernel["weights_bytes"]) if kernel["weights_bytes"] else "",
        )  # fmt: skip
    console.print(layers)
    console.print()
    for layer_names, table in _choices(record):
        console.print(line(layer_names), soft_wrap=True)
        console.print(table)
        console.print()
    print_facts(console, _facts(record))


def _choices(record: Record) -> Iterable[tuple[str, Table]]:
    """The candidates of the layers that had a choice; equal tables once."""
    layers: dict[str, list[Record]] = {}
    for kernel in record["kernels"]:
        names = [c["name"] for c in kernel["candidates"]]
        if len(names) > 1 or (names and kernel["implementation"] not in names):
            alike = json.dumps([kernel["implementation"], kernel["candidates"]])
            layers.setdefault(alike, []).append(kernel)
    for kernels in layers.values():
        first = kernels[0]
        table = plain_table(("candidate", False), ("fits", False), ("", False))
        for candidate in first["candidates"]:
            name, fits = candidate["name"], candidate["fits"]
            chosen = name == first["implementation"]
            add_row(
                table, name, "yes" if fits else "no", candidate["needs"],
                style="bold" if chosen else "",
            )  # fmt: skip
        alike = ", ".join(kernel["layer"] for kernel in kernels)
        yield f"{alike}: {first['implementation']}", table


def together(names: list[str]) -> str:
    """conv2d + add + relu; equal neighbours are counted: 3 add."""
    parts: list[tuple[str, int]] = []
    for name in names:
        if parts and parts[-1][0] == name:
            parts[-1] = name, parts[-1][1] + 1
        else:
            parts.append((name, 1))
    return " + ".join(name if count == 1 else f"{count} {name}" for name, count in parts)


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    for kind in ("input", "output"):
        for tensor in record[f"{kind}s"]:
            yield kind, f"{tensor['name']} {tensor_text(tensor)}"
    model = sum(of["model"] for of in record["operators"].values())
    ran = record["calls"]
    yield "kernels", f"{model} calls became {ran}, of {record['distinct_kernels']} kernels"
    macs = record["multiply_accumulates"]
    yield "work", f"{count_text(macs)} multiply-accumulates"
    weights = bytes_text(record["weights_bytes"])
    yield "weights", f"{count_text(record['parameters'])} parameters, {weights}"
    arena, least = record["arena_bytes"], record["arena_lower_bound_bytes"]
    more = f", {arena / least - 1:.1%} above the least possible" if least else ""
    yield "arena", f"{bytes_text(arena)}{more}, without the kernels' workspaces"
