"""PyTorch programs to graphs: an ExportedProgram of `torch.export.export`, or its .pt2 file.

    ExportedProgram --decomposed--> calls of ATen --torch_ops--> graph

torch decomposes operators without a converter into simpler ones. The module must be in inference
mode for the export: module.eval().
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from ..errors import ImporterError, InstallError
from ..files.outside import refuse_special
from ..graph.nodes import Function
from ..ir import Dim
from .pt2 import TRUST, data_of, entries_of
from .refusals import first_line, missing_operators, reading
from .torch_complex import COMPLEX, OF_COMPLEX
from .torch_control import CONTROL
from .torch_dims import bound
from .torch_node import Converter
from .torch_ops import CONVERTERS
from .torch_program import Conversion, calls_of, is_python, layer_of, operator_key

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# Reasons for operators that have no converter on purpose.
TRAINING = "the module is in training mode; call module.eval() before the export"
RANDOM = "it generates random numbers"
BY_DATA = "its output is a number or a shape known only at run time"
REASONS = {
    **dict.fromkeys(("aten._native_batch_norm_legit_functional", "aten.native_dropout"), TRAINING),
    **dict.fromkeys(("aten.rand", "aten.randn", "aten.randint", "aten.bernoulli",
                     "aten.rand_like", "aten.randn_like", "aten.randperm"), RANDOM),
    **dict.fromkeys(("aten._unique2", "aten._local_scalar_dense"), BY_DATA),
}  # fmt: skip
# Operators that only check what torch assumed of the data.
ASSERTIONS = frozenset(
    f"aten.{name}" for name in ("_assert_async", "_assert_scalar", "_assert_tensor_metadata",
                                "sym_constrain_range", "sym_constrain_range_for_size")
)  # fmt: skip
TALKATIVE = ("torch.export", "torch._export.serde.serialize")  # logs with tracebacks
LONGEST_REASON = 400  # characters of what torch says


def is_program(model: object) -> bool:
    """Whether it is an ExportedProgram; does not import torch."""
    kind = type(model)
    return kind.__module__.startswith("torch.export") and kind.__name__ == "ExportedProgram"


def from_torch(
    program: ExportedProgram | str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, Dim | str] | None = None,
    *,
    converters: Mapping[str, Converter] | None = None,
    trust: bool = False,
) -> Function:
    """The graph of a PyTorch program, not optimized. Weights are views of the program's own.

    shapes gives whole shapes of inputs; dims gives values of dynamic dimensions by their names in
    program.range_constraints ("s0"), "<=512" for a dynamic one, or another's symbol. converters
    adds to the table or overrides it: the key is "namespace.operator", the value a function of a
    TorchNode and the call's arguments. trust lets a file run code of its author; without it, a file
    that could run code is refused. Raises ImporterError, and InstallError if torch is missing.
    """
    where = str(program) if isinstance(program, (str, Path)) else "the program"
    program = read_program(program, converters or {}, trust)
    of_complex = {f"aten.{n}": convert for n, convert in ({**OF_COMPLEX, **COMPLEX}).items()}
    table = {**of_complex, **CONVERTERS, **CONTROL, **(converters or {})}
    known = bound(program, shapes or {}, dims or {}, where)
    program = _decomposed(program, table, where)
    _refuse_missing(program, table, where)
    return Conversion(program, table, known, where).function()


def read_program(
    program: ExportedProgram | str | Path, operators: Collection[str] = (), trust: bool = False
) -> ExportedProgram:
    """The program in a file; a program is returned as it is. operators: names with a converter of
    the user's; trust: see from_torch. Raises ImporterError, InstallError."""
    if isinstance(program, (str, Path)):
        file = Path(program)
        program = _trusted(file) if trust else _data(file, operators)
    if not is_program(program):
        raise ImporterError(
            f"a {type(program).__name__} is not a program of torch.export",
            mend="torch.export.export(module.eval(), (example inputs, ...))",
        )
    return program


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
            if node.op == "call_function" and not (operator or is_python(node.target)):
                what = f"the function '{operator_key(node.target)}' is not an operator on tensors"
                raise ImporterError(what, where=str(path), mend=TRUST)
    return program


def _refuse_unsafe_pickle(content: bytes, where: str) -> None:
    """Raises ImporterError for a pickle of more than tensors, numbers, texts, lists, tuples and
    dicts."""
    torch = _torch(where)
    if content[:4] == b"PK\x03\x04":
        entries_of(BytesIO(content), where)  # refuses entries that unpack to more than the file
    try:
        torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds
        first = first_line(error)
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
    cause = _Cause()
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(cause)
    try:
        program: ExportedProgram = torch.export.load(source)
        return program
    except Exception as error:  # of many kinds, from zip files to schemas
        reason = first_line(cause.error or error)  # torch logs the cause, and raises another error
        raise ImporterError(
            f"torch cannot read the program: {reason[:LONGEST_REASON]}",
            where=where,
            mend="torch.export.save(program, file), with the torch that is installed here",
        ) from error
    finally:
        for name in TALKATIVE:
            logging.getLogger(name).removeFilter(cause)


class _Cause(logging.Filter):
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
    """The program with other operators decomposed into those of the table, as far as torch can, and
    without assertions and what only they read."""
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
        what = f"torch cannot decompose the program: {first_line(error)}"
        raise ImporterError(what, where=where) from error
    for inner in result.graph_module.modules():
        if isinstance(inner, torch.fx.GraphModule):
            for node in list(inner.graph.nodes):
                if node.op == "call_function" and operator_key(node.target) in ASSERTIONS:
                    inner.graph.erase_node(node)
            inner.graph.eliminate_dead_code()
    return result


def _refuse_missing(program: ExportedProgram, table: Mapping[str, Converter], where: str) -> None:
    """Raises ImporterError that lists every operator without a converter."""
    missing: dict[str, list[str]] = {}
    for node in calls_of(program.graph_module):
        if operator_key(node.target) not in table and not is_python(node.target):
            missing.setdefault(operator_key(node.target), []).append(f"'{layer_of(node)}'")
    if missing:
        call = (
            "takes a TorchNode and the call's arguments, "
            "and returns node.emit(operator, *inputs, ...)"
        )
        raise missing_operators(missing, REASONS, where, call)
