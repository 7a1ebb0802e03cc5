"""What a node must be by its operator's definition (onnx.defs), and a graph by ONNX's format.

onnx.checker is stricter: it refuses files that every engine runs, as outputs without a type,
operators that a later opset withdrew, and weights beside the inputs in files of IR 3.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto

from ..errors import ImporterError

AGAIN = "copy or export the file again"


def check_node(proto: NodeProto, schema: Any) -> None:
    """Raises ValueError unless a node has as many inputs and outputs as its operator allows, and
    the attributes that it knows, of the right type."""
    for what, names, least, most in (
        ("inputs", proto.input, schema.min_input, schema.max_input),
        ("outputs", proto.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}"
            raise ValueError(f"{len(names)} {what}, where the operator has {allowed}")
    known = schema.attributes
    for attribute in proto.attribute:
        if attribute.name not in known:
            raise ValueError(
                f"the operator has no attribute '{attribute.name}' in opset {schema.since_version}"
            )
        wanted = known[attribute.name].type.value
        if not attribute.ref_attr_name and attribute.type != wanted:
            kind, right = (_kind(number) for number in (attribute.type, wanted))
            raise ValueError(f"attribute '{attribute.name}' is {kind}, and must be {right}")
    given = Counter(a.name for a in proto.attribute)
    if twice := [name for name, times in given.items() if times > 1]:
        raise ValueError(f"attribute '{twice[0]}' is given twice")
    if absent := [a.name for a in known.values() if a.required and a.name not in given]:
        raise ValueError(f"attribute '{absent[0]}' is missing")


def _kind(number: int) -> str:
    names: dict[int, str] = {int(n): name for name, n in AttributeProto.AttributeType.items()}
    return names.get(number, "unknown")


def check_names_once(graph: GraphProto, where: str) -> None:
    """Raises ImporterError if two nodes, inputs or weights of a graph have one name, but for a
    weight that is the default of an input."""
    made = [name for node in graph.node for name in node.output if name]
    for names in (
        [*made, *{i.name for i in graph.input} | {t.name for t in graph.initializer}],
        [i.name for i in graph.input],
        [t.name for t in graph.initializer],
    ):
        for name, times in Counter(names).items():
            if times > 1:
                raise ImporterError(
                    f"the ONNX model is damaged: '{name}' is computed or given {times} times",
                    where=where,
                    mend=AGAIN,
                )
