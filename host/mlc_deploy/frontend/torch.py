"""PyTorch programs to graphs: an ExportedProgram of `torch.export.export`, or its .pt2 file.

    ExportedProgram --decomposed--> calls of ATen --torch_ops--> graph

torch decomposes operators without a converter into simpler ones. The module must be in inference
mode for the export: module.eval().
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImporterError, InstallError, ShapeError
from ..files.outside import refuse_special
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Function, Value
from ..graph.verify import verify
from .node import shape_of
from .pt2 import TRUST, data_of, entries_of
from .refusals import (
    missing_operators,
    mistakes_at,
    reading,
    refuse_unknown_inputs,
    shape_text,
    unknown_shapes,
)
from .torch_node import Converter, TorchNode, dtype_name
from .torch_ops import CONVERTERS

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

# Reasons for operators that have no converter on purpose.
TRAINING = "the module is in training mode; call module.eval() before the export"
RANDOM = "it draws random numbers"
BY_DATA = "its output's shape depends on the data"
REASONS = {
    **dict.fromkeys(
        ("aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit",
         "aten.native_dropout"), TRAINING,
    ),
    **dict.fromkeys(("aten.rand", "aten.randn", "aten.randint", "aten.bernoulli",
                     "aten.rand_like", "aten.randn_like", "aten.randperm"), RANDOM),
    **dict.fromkeys(("aten.nonzero", "aten._unique2", "aten.masked_select"), BY_DATA),
    **dict.fromkeys(("higher_order.cond", "higher_order.while_loop", "higher_order.scan"),
                    "control flow"),
}  # fmt: skip
TALKATIVE = ("torch.export", "torch._export.serde.serialize")  # logs with tracebacks
LONGEST_REASON = 400  # characters of what torch says


def is_program(model: object) -> bool:
    """Whether it is an ExportedProgram, told without importing torch."""
    kind = type(model)
    return kind.__module__.startswith("torch.export") and kind.__name__ == "ExportedProgram"


def from_torch(
    program: ExportedProgram | str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
    *,
    converters: Mapping[str, Converter] | None = None,
    trust: bool = False,
) -> Function:
    """The graph of a PyTorch program, not optimized. Weights are views of the program's own.

    shapes gives whole shapes of inputs; dims gives values of dynamic dimensions by their names in
    program.range_constraints ("s0"). converters adds to the table or overrides it: the key is
    "namespace.operator", the value a function of a TorchNode and the call's arguments. trust lets a
    file run code of its author; without it, a file that could run code is refused. Raises
    ImporterError, and InstallError if torch is missing.
    """
    where = "the program"
    if isinstance(program, (str, Path)):
        where, file = str(program), Path(program)
        program = _trusted(file) if trust else _data(file, converters or {})
    if not is_program(program):
        raise ImporterError(
            f"a {type(program).__name__} is no program of torch.export",
            mend="torch.export.export(module.eval(), (example inputs, ...))",
        )
    table = {**CONVERTERS, **(converters or {})}
    symbols = _bound(program, shapes or {}, dims or {}, where)
    program = _decomposed(program, table, where)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    _refuse_missing(calls, table, where)
    _refuse_mutations(program, where)
    return _Conversion(program, table, symbols, where).function()


def _data(path: Path, operators: Collection[str]) -> ExportedProgram:
    """The program of a file, read without running any of its code."""
    archive = data_of(path, operators)
    torch = _torch(str(path))
    for entry in archive.pickles:
        _refuse_unsafe_pickle(archive.entries[entry], f"{path}, entry '{entry}'")
    program = _loaded(archive.packed(), str(path))
    higher = torch._ops.HigherOrderOperator
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            operator = isinstance(node.target, (torch._ops.OpOverload, higher))
            if node.op == "call_function" and not (operator or _is_python(node.target)):
                what = f"the function '{operator_key(node.target)}' is no operator on tensors"
                raise ImporterError(what, where=str(path), mend=TRUST)
    return program


def _refuse_unsafe_pickle(content: bytes, where: str) -> None:
    """Raises ImporterError for a pickle that holds more than tensors, numbers, texts, lists, tuples
    and dicts."""
    torch = _torch(where)
    if content[:4] == b"PK\x03\x04":
        entries_of(BytesIO(content), where)  # refuses entries that unpack to more than the file
    try:
        torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds
        first = str(error).strip().split("\n")[0] or type(error).__name__
        if "nsupported" in str(error) or isinstance(error, UnpicklingError):
            first = "it is a pickle of more than tensors, which runs code when it is read"
        raise ImporterError(first, where=where, mend=TRUST) from None


def _trusted(path: Path) -> ExportedProgram:
    """The program of a file, read by torch alone. torch may run code in the file."""
    with reading(path, "the path of a .pt2 file"):
        refuse_special(path)
    _torch(str(path))
    return _loaded(path, str(path))


def _loaded(source: Path | BytesIO, where: str) -> ExportedProgram:
    """The program that torch loads. Raises ImporterError with torch's reason."""
    torch = _torch(where)
    said = _Said()
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(said)
    try:
        program: ExportedProgram = torch.export.load(source)
        return program
    except Exception as error:  # of many kinds, from zip files to schemas
        reason = said.error or error  # torch logs the first, and raises one that names the log
        first = str(reason).strip().split("\n")[0][:LONGEST_REASON] or type(reason).__name__
        raise ImporterError(
            f"torch cannot read the program: {first}",
            where=where,
            mend="torch.export.save(program, file), with the torch that is installed here",
        ) from error
    finally:
        for name in TALKATIVE:
            logging.getLogger(name).removeFilter(said)


class _Said(logging.Filter):
    """Hides all records of a log and keeps the exception that one of them carries."""

    error: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            self.error = record.exc_info[1]
        return False


def _torch(where: str) -> Any:
    try:
        import torch
    except ImportError:
        raise InstallError(
            "PyTorch programs need torch, which is not installed",
            where=where,
            mend="pip install 'mlc-deploy[torch]'",
        ) from None
    return torch


def _decomposed(
    program: ExportedProgram, table: Mapping[str, Converter], where: str
) -> ExportedProgram:
    """The program with operators of the table, as far as torch can decompose the others."""
    torch = _torch(where)
    decompositions = torch.export.default_decompositions()
    for op in list(decompositions):
        if operator_key(op) in table:
            del decompositions[op]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about its own code
            result: ExportedProgram = program.run_decompositions(decompositions)
    except Exception as error:
        first = str(error).strip().split("\n")[0] or type(error).__name__
        raise ImporterError(f"torch cannot decompose the program: {first}", where=where) from error
    return result


def operator_key(target: Any) -> str:
    """ "namespace.name" of an operator, or the name of a Python function."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    namespace = getattr(target, "namespace", None)
    name = getattr(target, "__name__", str(target))
    return f"{namespace}.{name}" if namespace else name


def _refuse_missing(calls: Iterable[Node], table: Mapping[str, Converter], where: str) -> None:
    """Raises ImporterError that lists every operator without a converter."""
    missing: dict[str, list[str]] = {}
    for node in calls:
        if operator_key(node.target) not in table and not _is_python(node.target):
            missing.setdefault(operator_key(node.target), []).append(f"'{_layer(node)}'")
    if missing:
        call = (
            "takes a TorchNode and the call's arguments, "
            "and returns node.emit(operator, *inputs, ...)"
        )
        raise missing_operators(missing, REASONS, where, call)


def _is_python(target: Any) -> bool:
    """Whether a function computes with known numbers: sizes, and numbers made of them."""
    module = str(getattr(target, "__module__", ""))
    name = getattr(target, "__name__", "")
    return (
        module in ("_operator", "operator", "math", "builtins")
        or operator_key(target) in SIZES
        or (module.startswith("torch") and name.startswith("sym_"))
    )


SIZES = {
    "aten.sym_size": lambda x, axis: shape_of(x)[axis],
    "aten.sym_numel": lambda x: int(np.prod(shape_of(x), dtype=np.int64)),
    "aten.sym_stride": lambda x, axis: int(np.prod(shape_of(x)[axis:][1:], dtype=np.int64)),
}


def _refuse_mutations(program: ExportedProgram, where: str) -> None:
    """Raises ImporterError if the module writes to its own state or to an input."""
    from torch.export.graph_signature import OutputKind

    written = [
        s.target or s.arg.name
        for s in program.graph_signature.output_specs
        if s.kind not in (OutputKind.USER_OUTPUT, OutputKind.TOKEN)
    ]
    if written:
        raise ImporterError(
            f"the module writes to '{written[0]}' when it runs, which is not supported",
            where=where,
            mend="module.eval() before the export; state is an input and an output",
        )


def _layer(node: Node) -> str:
    """The module's path and the call's name, as in "features.0.conv2d"."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].").removeprefix("L['self']") if stack else ""
    return f"{path}.{node.name}" if path else node.name


# --------------------------------------------------------------------------------------- shapes


def _bound(
    program: ExportedProgram,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | str],
    where: str,
) -> dict[str, int]:
    """Values of all symbols in the inputs' shapes. Raises ShapeError that names unknown ones."""
    declared = _declared(program)
    refuse_unknown_inputs(shapes, declared, "program", where)
    symbols = {str(s): None for own in declared.values() for e in own for s in _free(e)}
    for name in dims:
        if name not in symbols:
            raise ShapeError(
                f"--bind names '{name}', which is no dynamic dimension of the program's inputs",
                where=where,
                mend=", ".join(symbols) or "none: its shapes are fixed",
            )
    for name, number in dims.items():
        if isinstance(number, str):
            what = f"--bind {name}{number}: a dimension of a PyTorch program cannot stay open"
            mend = f"--bind {name}=128; or torch.onnx.export, and the .onnx file"
            raise ShapeError(what, where=where, mend=mend)
    values = {name: int(value) for name, value in dims.items()}
    for name, given in shapes.items():
        _agree(name, declared[name], given, values, where)
    unbound = {
        name: own
        for name, own in declared.items()
        if any(str(s) not in values for e in own for s in _free(e))
    }
    if unbound:
        texts = [f"'{name}' [{', '.join(map(str, own))}]" for name, own in unbound.items()]
        raise unknown_shapes(texts, where, _examples(program, unbound))
    for symbol, limits in program.range_constraints.items():
        value = values.get(str(symbol))
        if value is not None and not limits.lower <= value <= limits.upper:
            raise ShapeError(
                f"dimension '{symbol}' is {value}, and the program was exported for "
                f"{limits.lower} to {limits.upper}",
                where=where,
            )
    return values


def _declared(program: ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """The inputs' shapes by name: integers, and sympy expressions where they are dynamic."""
    wanted = set(program.graph_signature.user_inputs)
    return {
        node.name: tuple(_expression(extent) for extent in node.meta["val"].shape)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in wanted and hasattr(node.meta["val"], "shape")
    }


def _expression(extent: Any) -> Any:
    return extent if isinstance(extent, int) else extent.node.expr


def _free(extent: Any) -> list[Any]:
    return [] if isinstance(extent, int) else sorted(extent.free_symbols, key=str)


def _agree(
    name: str, own: Sequence[Any], given: Sequence[int], values: dict[str, int], where: str
) -> None:
    """Adds the values of symbols that a given shape implies. Raises ShapeError if it does not fit
    the program."""
    wanted = f"[{', '.join(map(str, own))}]"
    what = f"{shape_text(name, given)} contradicts the program, where it is {wanted}"
    contradiction = ShapeError(what, where=where)
    if len(own) != len(given):
        raise contradiction
    for extent, value in zip(own, given, strict=True):
        if not isinstance(extent, int) and extent.is_Symbol:
            values.setdefault(str(extent), int(value))
    for extent, value in zip(own, given, strict=True):
        if all(str(s) in values for s in _free(extent)) and _concrete(extent, values) != value:
            raise contradiction


def _concrete(extent: Any, values: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    return int(extent.subs({s: values[str(s)] for s in _free(extent)}))


def _examples(program: ExportedProgram, names: Iterable[str]) -> str:
    """Shapes to try: those of the example inputs of the export."""
    from torch.utils import _pytree

    tensors = _pytree.tree_leaves(program.example_inputs) if program.example_inputs else []
    inputs = dict(zip(program.graph_signature.user_inputs, tensors, strict=False))
    return " ".join(
        f"--shape {name}={','.join(map(str, inputs[name].shape))}"
        for name in names
        if hasattr(inputs.get(name), "shape")
    )


# ----------------------------------------------------------------------------------- conversion


class _Conversion:
    """The values of a program's nodes as they become known."""

    def __init__(
        self,
        program: ExportedProgram,
        table: Mapping[str, Converter],
        symbols: Mapping[str, int],
        where: str,
    ) -> None:
        self.program, self.table, self.symbols, self.where = program, table, symbols, where
        self.builder = BlockBuilder("main")
        self.values: dict[Node, Any] = {}

    def function(self) -> Function:
        stored = self._stored()
        for node in self.program.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node] = self._input(node, stored)
                case "call_function":
                    self.values[node] = self._call(node)
                case "output":
                    outputs = self._operands(node.args[0])
        return self._finish(outputs)

    def _stored(self) -> dict[str, Any]:
        """Parameters, buffers and constants by the names of their placeholders."""
        state, constants = self.program.state_dict, self.program.constants
        return {
            spec.arg.name: state[spec.target] if spec.target in state else constants[spec.target]
            for spec in self.program.graph_signature.input_specs
            if spec.target is not None and hasattr(spec.arg, "name")
        }

    def _input(self, node: Node, stored: Mapping[str, Any]) -> Any:
        place = f"{self.where}, input '{node.name}'"
        if node.name in stored:
            array = _array(stored[node.name], place) if node.users else np.zeros(())
            return Constant(array, node.name)
        if not hasattr(node.meta["val"], "shape"):
            return node.meta["val"]  # a number that was given for the export
        shape = [_concrete(_expression(e), self.symbols) for e in node.meta["val"].shape]
        return self.builder.param(node.name, shape, dtype_name(node.meta["val"].dtype, place))

    def _call(self, node: Node) -> Any:
        place = f"{self.where}, '{_layer(node)}' ({operator_key(node.target)})"
        with mistakes_at(place):
            if _is_python(node.target):
                compute = SIZES.get(operator_key(node.target), node.target)
                return compute(*self._operands(node.args), **self._operands(node.kwargs))
            result = self.table[operator_key(node.target)](
                self._torch_node(node, place), *self._arguments(node)
            )
        self._check(node, result, place)
        return result

    def _torch_node(self, node: Node, place: str) -> TorchNode:
        overload = getattr(node.target, "_overloadname", "")
        known = [a.meta.get("val") if hasattr(a, "meta") else a for a in node.args]
        return TorchNode(
            operator_key(node.target), overload, node.name, _layer(node), place,
            (node.meta.get("val"), known), self.builder,
        )  # fmt: skip

    def _arguments(self, node: Node) -> list[Any]:
        """All arguments in the schema's order, defaults filled in."""
        given = list(node.args)
        arguments = node.target._schema.arguments
        for argument in arguments[len(given) :]:
            given.append(node.kwargs.get(argument.name, argument.default_value))
        operands: list[Any] = self._operands(given)
        return operands

    def _operands(self, arg: Any) -> Any:
        """An argument with values in the place of nodes."""
        match arg:
            case list() | tuple():
                return [self._operands(a) for a in arg]
            case dict():
                return {key: self._operands(a) for key, a in arg.items()}
        return self.values[arg] if arg in self.values else arg

    def _check(self, node: Node, result: Any, place: str) -> None:
        """Compares a converter's result with the type that torch knows: our mistakes show here."""
        expected = node.meta.get("val")
        pairs = zip(result, expected, strict=False) if isinstance(result, (list, tuple)) else [
            (result, expected)
        ]  # fmt: skip
        for value, wanted in pairs:
            if not isinstance(value, Value) or not hasattr(wanted, "shape"):
                continue
            shape = tuple(_concrete(_expression(e), self.symbols) for e in wanted.shape)
            dtype = dtype_name(wanted.dtype, place)
            if (shape_of(value), value.type.dtype) != (shape, dtype):
                raise ImporterError(
                    f"the converter gives {value.type}, and torch {dtype}{list(shape)}",
                    where=place,
                )

    def _finish(self, results: Sequence[Any]) -> Function:
        names = _output_names(self.program, len(results))
        kept = [(v, n) for v, n in zip(results, names, strict=True) if isinstance(v, Value)]
        function = self.builder.finish([v for v, _ in kept], [n for _, n in kept])
        verify(function)
        return function


def _array(tensor: Any, where: str) -> NDArray[Any]:
    """The tensor as numpy sees it. A tensor on the CPU is not copied."""
    dtype_name(tensor.dtype, where)
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _output_names(program: ExportedProgram, count: int) -> list[str]:
    """The keys of a dict that the program returns; else "output", with numbers for several."""
    from torch.utils import _pytree

    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return [f"output_{n}" for n in range(count)] if count > 1 else ["output"]
    tree = _pytree.tree_unflatten(range(count), spec)
    paths, _ = _pytree.tree_flatten_with_path(tree)
    return ["_".join(["output"] * _numbered(path) + [_step(k) for k in path]) for path, _ in paths]


def _numbered(path: Sequence[Any]) -> bool:
    """Whether a path names nothing: it is empty, or begins with a number."""
    return not path or _step(path[0]).isdigit()


def _step(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
