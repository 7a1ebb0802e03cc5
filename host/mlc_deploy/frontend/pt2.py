"""Reads a .pt2 file so that no code in it can run.

    file --here--> an archive of data in memory --torch.export.load--> program

torch runs code of a file in six ways. It unpickles sample inputs, weights and constants. It
evaluates expressions of dynamic sizes and guards as Python. It makes Python functions whose text
has the names of values. It calls any function that an operator's name leads to. It imports the
modules of enumerations in the structure of inputs. It loads compiled libraries.

So torch never reads the file itself. This module copies known data into another archive, checks the
form of each text, leaves out entries that are not needed, and refuses all else by name. It does not
need torch.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ImporterError
from ..files.archives import is_inside
from ..files.limits import PT2_DEPTH, PT2_ENTRIES, PT2_EXPANDED
from ..files.outside import open_file
from .refusals import reading

TRUST = "--trust, or trust=True, for a file whose author may run code on this machine"
AGAIN = "torch.export.save(program, file), with the torch that is installed here"
MODEL = "model"  # what torch.export.save calls the one program of a file
ROOT = "archive/"
PLAIN = ("archive_format", "archive_version", "byteorder", ".data/version", "version")
# The form of torch 2.7 and before; torch still reads it.
OLD_MODEL = "serialized_exported_program.json"
OLD_PICKLES = (
    "serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt",
)  # fmt: skip
# Errors of zipfile for damaged archives.
DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError, RuntimeError,
    EOFError, IndexError, KeyError, OverflowError,
)  # fmt: skip


@dataclass(frozen=True)
class Archive:
    """Entries of a .pt2 file that hold only data. torch unpickles the entries `pickles`, so the
    caller must first read these with weights only."""

    entries: Mapping[str, bytes]
    pickles: tuple[str, ...]
    where: str

    def packed(self) -> io.BytesIO:
        """The archive as torch reads it."""
        stream = io.BytesIO()
        root = "" if OLD_MODEL in self.entries else ROOT
        with zipfile.ZipFile(stream, "w") as file:
            for name, content in self.entries.items():
                file.writestr(root + name, content)
        stream.seek(0)
        return stream


def data_of(path: Path, operators: Collection[str] = ()) -> Archive:
    """The data of a .pt2 file. torch runs none of it, except the pickles.

    operators: other operators that a program may call, as "namespace.operator". Raises
    ImporterError.
    """
    where = str(path)
    found = _Checked(where, frozenset(operators))
    with reading(path, "the path of a .pt2 file"), open_file(path) as stream:
        entries = entries_of(stream, where)
    return found.old_form(entries) if OLD_MODEL in entries else found.form(entries)


def entries_of(stream: Any, where: str) -> dict[str, bytes]:
    """The entries of a zip archive by name, without the folder around them. They must not be
    compressed, so together they are not larger than the file. Raises ImporterError, OSError."""
    try:
        size = stream.seek(0, io.SEEK_END)
        with zipfile.ZipFile(stream) as file:
            infos = file.infolist()
            packed = next((i.filename for i in infos if i.compress_type != zipfile.ZIP_STORED), "")
            if packed:
                raise ImporterError(
                    f"its entry {packed!a} is compressed, which torch never does",
                    where=where,
                    mend=AGAIN,
                )
            inside = all(is_inside(i, size) for i in infos)
            whole = sum(i.file_size for i in infos)
            if len(infos) > PT2_ENTRIES.most or whole > size or not inside:
                raise ImporterError(
                    "its entries are larger than the file, or too many", where=where, mend=AGAIN
                )
            root = ""
            if not any(i.filename == OLD_MODEL for i in infos):
                root = infos[0].filename.partition("/")[0] + "/" if infos else ""
            found: dict[str, bytes] = {}
            for info in infos:
                name = info.filename.removeprefix(root)
                if name in found:
                    raise ImporterError(f"it has two entries {name!a}", where=where, mend=AGAIN)
                found[name] = file.read(info)
            return found
    except DAMAGED:
        what = "this is not a .pt2 file, or it is damaged"
        raise ImporterError(what, where=where, mend=AGAIN) from None


# ------------------------------------------------------------------------------------- the texts

# Text that does nothing in Python code, with or without quotes.
HARMLESS = re.compile(r"[\w .:/+-]*")
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SYMBOL = re.compile(r"[A-Za-z_]{1,16}\d{0,6}", re.ASCII)  # few digits: torch counts up to them
SIZE = re.compile(r"[\w *+/(),.%-]{1,200}", re.ASCII)  # a dimension's name or expression
FREE_TEXT = ("as_string", "as_strings")  # operators' operands, which torch quotes
NAMED = ("name", "as_name", "forward_arg_names")
TREES = ("in_spec", "out_spec")
KEPT_METADATA = "nn_module_stack"

OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.([A-Za-z]\w*))?", re.ASCII)
OWN_SPACES = ("aten", "prims", "quantized_decomposed")
FILES = ("aten.from_file", "aten.save")  # operators that read and write files
DOUBLE = tuple(f"__{i}{op}__" for op in ("and", "or", "xor", "lshift", "rshift") for i in ("", "i"))
HIGHER = (
    "associative_scan", "auto_functionalized", "auto_functionalized_v2", "cond", "invoke_subgraph",
    "map_impl", "out_dtype", "scan", "while_loop", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)  # fmt: skip
PYTHON = {
    "_operator": (
        "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lt", "mod", "mul", "ne",
        "neg", "not_", "or_", "pos", "pow", "sub", "truediv",
    ),
    "math": ("ceil", "floor", "sqrt", "trunc"),
    "torch": (
        "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum",
        "_sym_sqrt",
    ),
}  # fmt: skip

# The functions in expressions of sizes, of sympy and of torch.
FUNCTIONS = frozenset(
    """Abs Add And CeilDiv CeilToInt CleanDiv Equality ExprCondPair Float FloatTrueDiv FloorDiv
    FloorToInt GreaterThan Identity IntTrueDiv Integer LessThan Max Min Mod ModularIndexing Mul Not
    Or Piecewise PythonMod Rational StrictGreaterThan StrictLessThan Symbol ToFloat TruncToInt
    Unequality Where ceiling floor""".split()
)
POWERS = frozenset(("Pow", "PowByNatural"))
MOST_EXPONENT, MOST_POWERS, MOST_EXPRESSION = 16, 3, 20_000
MOST_INTEGER = 1 << 64  # in an expression of dimensions


def is_operator(target: str, operators: Collection[str] = ()) -> bool:
    """Whether torch's name of a function is that of an operator on tensors and sizes."""
    module, _, function = target.rpartition(".")
    if module in PYTHON:
        return function in PYTHON[module]
    match = OPERATOR.fullmatch(target)
    if not match:
        return False
    space, name, overload = match.groups()
    if space == "higher_order":
        return name in HIGHER and overload is None
    known = space in OWN_SPACES or f"{space}.{name}" in operators
    private = name.startswith("__") and name not in DOUBLE
    return known and overload is not None and not private and f"{space}.{name}" not in FILES


def expression(text: str) -> str | None:
    """The expression of sizes in a text; None for other texts and for too large ones."""
    if len(text) > MOST_EXPRESSION:
        return None
    try:
        tree = ast.parse(text, mode="eval")
        return ast.unparse(tree) if _is_expression(tree.body, 0) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_expression(node: ast.expr, powers: int) -> bool:
    match node:
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int(value)):
            return abs(value) <= MOST_INTEGER
        case ast.Constant(value=float(value)):
            return math.isfinite(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as operand):
            return _is_expression(operand, powers)
        case ast.Name(id="true" | "false"):
            return True
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            of = [keyword.value for keyword in node.keywords]
            flags = all(isinstance(v, ast.Constant) and isinstance(v.value, bool) for v in of)
            return flags and SYMBOL.fullmatch(name) is not None
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(digits))]):
            plain = re.fullmatch(r"-?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?", digits)
            counts = [k.value for k in node.keywords if k.arg == "precision"]
            known = [isinstance(c, ast.Constant) and c.value in range(1, 129) for c in counts]
            return plain is not None and len(counts) == len(node.keywords) and all(known)
        case ast.Call(func=ast.Name(id=name), args=[base, exponent], keywords=[]) if name in POWERS:
            return (
                powers < MOST_POWERS
                and _is_expression(base, powers + 1)
                and _is_expression(exponent, powers + 1)
                and _is_small(exponent)
            )
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return all(_is_expression(arg, powers) for arg in args)
    return False


def _is_small(exponent: ast.expr) -> bool:
    """Whether an exponent is a small number."""
    match exponent:
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=args):
            return all(_is_small(arg) for arg in args)
        case ast.UnaryOp(operand=operand):
            return _is_small(operand)
        case ast.Constant(value=int(value)):
            return abs(value) <= MOST_EXPONENT
    return False


@dataclass(frozen=True)
class _Checked:
    """The rules, for one file."""

    where: str
    operators: frozenset[str]

    def form(self, entries: Mapping[str, bytes]) -> Archive:
        compiled = next((n for n in entries if n.startswith("data/aotinductor/")), None)
        if compiled:
            self.refuse("it holds a compiled library, which runs when it is loaded", compiled)
        others = [n for n in entries if n.startswith("models/") and n != f"models/{MODEL}.json"]
        if f"models/{MODEL}.json" not in entries:
            what = f"it holds no program '{MODEL}'" + (f", but {others[0]!a}" if others else "")
            raise ImporterError(what, where=self.where, mend=AGAIN)
        kept = {name: entries[name] for name in PLAIN if name in entries}
        pickles = []
        for kind in ("weights", "constants"):
            whole = f"data/{kind}/{MODEL}.pt"  # as some versions wrote them
            if whole in entries:
                kept[whole] = entries[whole]
                pickles.append(whole)
            else:
                kept |= self.tensors(entries, kind)
        samples = f"data/sample_inputs/{MODEL}.pt"
        kept[samples] = entries.get(samples, b"")
        pickles += [samples] if kept[samples] else []
        kept[f"models/{MODEL}.json"] = self.program(entries, f"models/{MODEL}.json")
        return Archive(kept, tuple(pickles), self.where)

    def old_form(self, entries: Mapping[str, bytes]) -> Archive:
        kept = {name: entries[name] for name in (*PLAIN, *OLD_PICKLES) if name in entries}
        kept[OLD_MODEL] = self.program(entries, OLD_MODEL)
        return Archive(kept, tuple(n for n in OLD_PICKLES if kept.get(n)), self.where)

    def refuse(self, what: str, entry: str) -> NoReturn:
        where = f"{self.where}, entry {entry!a:.100}"
        raise ImporterError(what, where=where, mend=TRUST)

    def tensors(self, entries: Mapping[str, bytes], kind: str) -> dict[str, bytes]:
        """The entries with the list of weights or constants, and with the files that it names."""
        index = f"data/{kind}/{MODEL}_{kind}_config.json"
        listed = self.json(entries, index)
        config = listed.get("config") if isinstance(listed, dict) else None
        if not isinstance(config, dict):
            raise ImporterError(f"the list of its {kind} is damaged", where=self.where, mend=AGAIN)
        found: dict[str, bytes] = {}
        for name, about in config.items():
            match about:
                case {"path_name": str(file), "use_pickle": False, "tensor_meta": dict(meta)}:
                    pass
                case {"path_name": str(file), "use_pickle": _}:
                    what = f"{name!a:.60} is a pickle, which runs code when it is read"
                    self.refuse(what, f"data/{kind}/{file}")
                case _:
                    raise ImporterError(
                        f"the list of its {kind} is damaged at {name!a:.60}",
                        where=self.where,
                        mend=AGAIN,
                    )
            path = f"data/{kind}/{file}"
            if path not in entries or not re.fullmatch(r"(weight|tensor)_\d+", file):
                what = f"{name!a:.60} is stored as no tensor"
                self.refuse(what, path)
            found[path] = entries[path]
            self.fits(name, meta, len(entries[path]))
        found[index] = json.dumps(self.plain({"config": config}, index, "")).encode()
        return found

    def fits(self, name: str, meta: Mapping[str, Any], stored: int) -> None:
        """Raises ImporterError if a tensor takes far more memory than the file stores of it."""
        match meta.get("sizes"):
            case list(sizes) if all(_extent(s) is not None for s in sizes):
                count = math.prod(_extent(s) or 0 for s in sizes)
            case _:
                count = -1
        if count < 0 or count > max(stored, PT2_EXPANDED.most if stored else 0):
            raise ImporterError(
                f"tensor {name!a:.60} has {count:,} elements, and {stored:,} bytes are stored of it"
                if count >= 0
                else f"the shape of tensor {name!a:.60} is damaged",
                where=self.where,
                mend=AGAIN,
            )

    def program(self, entries: Mapping[str, bytes], entry: str) -> bytes:
        return json.dumps(self.plain(self.json(entries, entry), entry, "")).encode()

    def json(self, entries: Mapping[str, bytes], entry: str) -> Any:
        try:
            return json.loads(entries[entry])
        except KeyError:
            what = f"it lacks its entry '{entry}'"
            raise ImporterError(what, where=self.where, mend=AGAIN) from None
        except (ValueError, RecursionError):
            raise ImporterError(f"'{entry}' is damaged", where=self.where, mend=AGAIN) from None

    # ---------------------------------------------------------------------------- the rules

    def plain(self, value: Any, entry: str, key: str, depth: int = 0) -> Any:
        """JSON without the fields that are not needed. Each text has the form that its key asks
        for."""
        if depth > PT2_DEPTH.most:
            raise ImporterError(f"'{entry}' is nested too deeply", where=self.where, mend=AGAIN)
        match value:
            case dict():
                return {
                    self.text(k, entry, ""): self.field(k, v, entry, depth)
                    for k, v in value.items()
                }
            case list():
                return [self.plain(v, entry, key, depth + 1) for v in value]
            case str():
                return self.text(value, entry, key)
        return value

    def field(self, key: str, value: Any, entry: str, depth: int) -> Any:
        match key, value:
            case "guards_code", _:
                return []
            case "metadata", dict():
                stack = value.get(KEPT_METADATA)
                return {KEPT_METADATA: stack} if isinstance(stack, str) else {}
            case "range_constraints", dict():
                for size in value:
                    if not SIZE.fullmatch(size) or re.search(r"\d{7}", size):
                        self.refuse(f"{size!a:.60} is not a dimension", entry)
                return {s: self.plain(v, entry, "", depth + 1) for s, v in value.items()}
        return self.plain(value, entry, key, depth + 1)

    def text(self, text: str, entry: str, key: str) -> str:
        shown = f"{text!a:.80}"
        match key:
            case "expr_str":
                size = expression(text)
                if size is None:
                    self.refuse(f"the size {shown} is not an expression, but code", entry)
                return size
            case "target" | "as_operator":
                if not is_operator(text, self.operators):
                    self.refuse(f"the function {shown} is not an operator on tensors", entry)
            case _ if key in TREES:
                return self.tree(text, entry, key)
            case _ if key in NAMED:
                if text and (not NAME.fullmatch(text) or iskeyword(text)):
                    self.refuse(f"{shown} is not a name, but may be code", entry)
            case _ if key in FREE_TEXT:
                pass
            case _:
                if not HARMLESS.fullmatch(text):
                    self.refuse(f"{shown} at {key!a:.40} may be code", entry)
        return text

    def tree(self, text: str, entry: str, key: str) -> str:
        """The structure of inputs or outputs, which is JSON in a text."""
        if not text:
            return text
        try:
            version, root = json.loads(text)
            self.branch(root, entry, 0)
            # The names of keyword arguments become those of a function's parameters.
            if key == "in_spec" and root["type"] == "builtins.tuple":
                for child in root["children_spec"][1:]:
                    names = json.loads(child["context"]) if child["type"] else []
                    for name in names if isinstance(names, list) else []:
                        self.text(name, entry, "name")
            return json.dumps([version, root])
        except (ValueError, TypeError, KeyError, LookupError, RecursionError, AttributeError):
            raise ImporterError(
                "the structure of its inputs or outputs is damaged", where=self.where, mend=AGAIN
            ) from None

    def branch(self, node: Any, entry: str, depth: int) -> None:
        kind, context, children = node["type"], node["context"], node["children_spec"]
        if kind == "collections.defaultdict":
            self.refuse("the structure of inputs and outputs names a class to import", entry)
        self.plain([kind, self.context(context, entry)], entry, "")
        if depth > PT2_DEPTH.most:
            raise RecursionError
        for child in children:
            self.branch(child, entry, depth + 1)

    def context(self, text: Any, entry: str) -> Any:
        """The context of a node of the structure: null, keys, or data of its class."""
        value = text
        if isinstance(text, str):
            try:
                value = json.loads(text)
            except ValueError:  # the name of a class
                return text
        if any("__enum__" in found for found in _maps(value)):
            self.refuse("the structure of inputs and outputs names a module to import", entry)
        return value


def _maps(value: Any) -> list[dict[str, Any]]:
    match value:
        case dict():
            return [value, *(m for v in value.values() for m in _maps(v))]
        case list():
            return [m for v in value for m in _maps(v)]
    return []


def _extent(size: Any) -> int | None:
    match size:
        case {"as_int": int(extent)} if extent >= 0 and len(size) == 1:
            return extent
    return None
