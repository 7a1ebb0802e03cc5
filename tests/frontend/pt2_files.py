"""Files of torch.export, made by hand: what is wrong with them is said here, entry by entry."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Entries = dict[str, bytes]
Edit = Callable[[Any], None]

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
IMPORTED = "imported_by_a_model"  # a module that some of the files name
SAMPLES = "data/sample_inputs/model.pt"


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def entries(file: Path) -> Entries:
    """The entries of a file, without the folder that all are in."""
    with zipfile.ZipFile(file) as archive:
        return {i.filename.partition("/")[2]: archive.read(i) for i in archive.infolist()}


def write(
    file: Path, content: Mapping[str, bytes], root: str = "m/", kind: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in content.items():
            archive.writestr(root + name, data)
    return file


def edited(content: Entries, entry: str, edit: Edit) -> Entries:
    """With an entry of JSON changed."""
    value = json.loads(content[entry])
    edit(value)
    return content | {entry: json.dumps(value).encode()}


def tensor_meta(*sizes: int) -> dict[str, Any]:
    strides = [1] * len(sizes)
    return {
        "dtype": 7,
        "sizes": [{"as_int": size} for size in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def stored(name: str, file: str, *sizes: int, use_pickle: bool = False) -> dict[str, Any]:
    """The list of one tensor."""
    about = {"path_name": file, "is_param": False, "use_pickle": use_pickle}
    return {"config": {name: about | {"tensor_meta": tensor_meta(*sizes)}}}


def relu() -> Entries:
    """What torch 2.13 writes for x -> relu(x), the least that it reads."""
    tree = {"type": "builtins.tuple", "context": "null"}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    inputs = tree | {"children_spec": [tree | {"children_spec": [LEAF]}, keywords]}
    x, y = ({"as_tensor": {"name": name}} for name in ("x", "relu"))
    node: dict[str, Any] = {
        "target": "torch.ops.aten.relu.default",
        "inputs": [{"name": "self", "arg": x, "kind": 1}],
        "outputs": [y],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": "relu",
    }
    graph = {
        "inputs": [x],
        "outputs": [y],
        "nodes": [node],
        "tensor_values": {"x": tensor_meta(3), "relu": tensor_meta(3)},
        "sym_int_values": {},
        "sym_bool_values": {},
        "is_single_tensor_return": False,
        "custom_obj_values": {},
        "sym_float_values": {},
    }
    signature = {
        "input_specs": [{"user_input": {"arg": x}}],
        "output_specs": [{"user_output": {"arg": y}}],
    }
    call = {
        "inputs": [x],
        "outputs": [y],
        "in_spec": json.dumps([1, inputs]),
        "out_spec": json.dumps([1, LEAF]),
        "forward_arg_names": ["x"],
    }
    program = {
        "graph_module": {
            "graph": graph,
            "signature": signature,
            "module_call_graph": [{"fqn": "", "signature": call}],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10},
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 8},
        "verifiers": ["TRAINING"],
        "torch_version": "2.13.0",
        "guards_code": [],
    }
    nothing = json.dumps({"config": {}}).encode()
    return {
        MODEL: json.dumps(program).encode(),
        WEIGHTS: nothing,
        CONSTANTS: nothing,
        SAMPLES: b"",
        "archive_format": b"pt2",
        "archive_version": b"0",
        ".data/version": b"6\n",
        "byteorder": b"little",
    }


def bare_pickle(marker: Path) -> bytes:
    return pickle.dumps(Runs(marker), 2)


# ---------------------------------------------------------------------------- what would run code


def graph(program: Any) -> Any:
    return program["graph_module"]["graph"]


def call(program: Any, target: str, *operands: Any) -> None:
    """Puts a call before the others."""
    graph(program)["nodes"].insert(0, {
        "target": target,
        "inputs": [{"name": "", "arg": operand, "kind": 1} for operand in operands],
        "outputs": [{"as_none": True}],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": "first",
    })  # fmt: skip


def renamed(program: Any, name: str) -> None:
    text = json.dumps(program).replace('"name": "x"', json.dumps({"name": name})[1:-1])
    text = text.replace('"x": {"dtype"', f'{json.dumps(name)}: {{"dtype"')
    program.clear()
    program.update(json.loads(text))


def sized(program: Any, text: str) -> None:
    expression = {"as_expr": {"expr_str": text, "hint": {"as_int": 3}}}
    graph(program)["tensor_values"]["x"]["sizes"] = [expression]


def structured(program: Any, kind: str, context: Any) -> None:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    node = {"type": kind, "context": context, "children_spec": [LEAF]}
    signature["out_spec"] = json.dumps([1, node])


def keyword(program: Any, name: str) -> None:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    version, tree = json.loads(signature["in_spec"])
    tree["children_spec"][1] |= {"context": json.dumps([name]), "children_spec": [LEAF]}
    signature["in_spec"] = json.dumps([version, tree])


def code(marker: Path) -> str:
    """Python that makes the file; without line ends, quotes of one kind."""
    return f"__import__('pathlib').Path('{marker}').touch()"


def hostile(marker: Path) -> dict[str, tuple[Entries, str]]:
    """By name: a file that would run code, and what is said of it."""
    base, pickled, run = relu(), bare_pickle(marker), code(marker)

    def program(edit: Edit) -> Entries:
        return edited(base, MODEL, edit)

    def constant(file: str) -> Entries:
        listed = json.dumps(stored("k", file, 3, use_pickle=True)).encode()
        return base | {CONSTANTS: listed, f"data/constants/{file}": pickled}

    weight = json.dumps(stored("w", "weight_0", 3, use_pickle=True)).encode()
    keep = {"as_string": run}
    runs = "is a pickle, which runs code when it is read"
    return {
        "weight": (base | {WEIGHTS: weight, "data/weights/weight_0": pickled}, f"'w' {runs}"),
        "constant": (constant("tensor_0"), f"'k' {runs}"),
        "custom object": (constant("custom_obj_0"), f"'k' {runs}"),
        "opaque object": (constant("opaque_obj_0"), f"'k' {runs}"),
        "library": (
            base | {"data/aotinductor/model/model.so": b"\x7fELF"},
            "it holds a compiled library, which runs when it is loaded",
        ),
        "size": (program(lambda p: sized(p, run)), "is not an expression, but code"),
        "size in a symbol": (
            program(lambda p: sized(p, f'Add("{run}", 1)')),
            "is not an expression, but code",
        ),
        "function": (
            program(lambda p: call(p, "torch.builtins.eval", keep)),
            "the function 'torch.builtins.eval' is not an operator on tensors",
        ),
        "loader of libraries": (
            program(lambda p: call(p, "torch.ops.load_library.__func__", keep, keep)),
            "the function 'torch.ops.load_library.__func__' is not an operator on tensors",
        ),
        "operator on files": (
            program(lambda p: call(p, "torch.ops.aten.from_file.default", keep)),
            "the function 'torch.ops.aten.from_file.default' is not an operator on tensors",
        ),
        "function as an operand": (
            program(
                lambda p: call(
                    p, "torch.ops.higher_order.cond", {"as_operator": "torch.builtins.eval"}, keep
                )
            ),
            "the function 'torch.builtins.eval' is not an operator on tensors",
        ),
        "higher order": (
            program(lambda p: call(p, "torch.ops.higher_order.flat_apply", keep)),
            "the function 'torch.ops.higher_order.flat_apply' is not an operator on tensors",
        ),
        "name": (program(lambda p: renamed(p, f"x={run}")), "is not a name, but may be code"),
        "keyword": (program(lambda p: keyword(p, f"k={run}")), "may be code"),
        "enumeration": (
            program(
                lambda p: structured(
                    p,
                    "builtins.dict",
                    f'[{{"__enum__": true, "fqn": "{IMPORTED}:E", "name": "A"}}]',
                )
            ),
            "the structure of inputs and outputs names a module to import",
        ),
        "default": (
            program(
                lambda p: structured(
                    p,
                    "collections.defaultdict",
                    {
                        "default_factory_module": IMPORTED,
                        "default_factory_name": "E",
                        "dict_context": ["k"],
                    },
                )
            ),
            "the structure of inputs and outputs names a class to import",
        ),
        "name of a parameter": (
            program(
                lambda p: p["graph_module"]["signature"]["input_specs"].append(
                    {"parameter": {"arg": {"name": "x"}, "parameter_name": f'w"){run}("'}}
                )
            ),
            "may be code",
        ),
        "what torch may come to have": (
            program(lambda p: p.update(hooks=[run])),
            "at 'hooks' may be code",
        ),
    }
