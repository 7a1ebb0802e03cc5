"""Writes the pages of docs/reference that are generated: commands.md from the commands' --help,
python.md from the docstrings of the public names, operators.md from the tables of converters, and
record.md from record.schema.json.

    python scripts/reference.py [--check]

With --check it writes nothing; its exit status says whether the pages are those of these sources.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import mlc_deploy
import mlc_rpc
import mlc_targets
from mlc_deploy import graph, te, tune
from mlc_deploy.cli.main import COMMANDS, cli
from mlc_deploy.cli.topics import TOPICS
from mlc_deploy.frontend import onnx_import, onnx_ops, torch, torch_control, torch_ops
from mlc_deploy.frontend.tflite import importer, ops

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
WIDTH = 80
WRITTEN = "`scripts/reference.py` writes this page."
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
VARIADIC = inspect.Parameter.VAR_POSITIONAL
LINE = 90  # of a signature
ROOMS: dict[str, tuple[ModuleType, str]] = {
    "mlc_deploy": (mlc_deploy, "import mlc_deploy as mlc"),
    "mlc_deploy.te": (te, "from mlc_deploy import te"),
    "mlc_deploy.graph": (graph, "from mlc_deploy import graph"),
    "mlc_deploy.tune": (tune, "from mlc_deploy import tune"),
    "mlc_rpc": (mlc_rpc, "import mlc_rpc"),
    "mlc_targets": (mlc_targets, "import mlc_targets"),
}


def helps() -> Iterator[tuple[str, str]]:
    """The title and the text of each command's --help and of each topic of `mlc-deploy help`."""

    def help_of(command: click.Command, name: str, parent: click.Context) -> str:
        ctx = command.make_context(name, ["--help"], parent, resilient_parsing=True)
        ctx.terminal_width = ctx.max_content_width = WIDTH
        return command.get_help(ctx)

    root = click.Context(cli, info_name="mlc-deploy", terminal_width=WIDTH, max_content_width=WIDTH)
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=root)
            for sub, one in command.commands.items():
                yield f"mlc-deploy {name} {sub}", help_of(one, sub, inner)
        else:
            yield (
                "mlc-deploy" if name == "run" else f"mlc-deploy {name}",
                help_of(command, name, root),
            )
    for topic in TOPICS:
        yield f"mlc-deploy help {topic}", _printed(topic)


def _printed(topic: str) -> str:
    """What `mlc-deploy help TOPIC` prints."""
    with redirect_stdout(StringIO()) as out:
        cli.main(["help", topic], terminal_width=WIDTH, standalone_mode=False)
    return out.getvalue()


def commands_page() -> str:
    parts = [
        f"# Commands and options\n\nWhat `--help` prints, and `mlc-deploy help TOPIC`. {WRITTEN}\n"
    ]
    parts += [f"\n## {title}\n\n```text\n{text.rstrip()}\n```\n" for title, text in helps()]
    return "".join(parts)


def signature_of(name: str, value: object) -> str:
    """name(parameters) -> result, a parameter a line where they do not fit on one."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    parameters = [shown(p) for p in signature.parameters.values() if p.name != "self"]
    kinds = [p.kind for p in signature.parameters.values() if p.name != "self"]
    if KEYWORD_ONLY in kinds and VARIADIC not in kinds:
        parameters.insert(kinds.index(KEYWORD_ONLY), "*")
    given = signature.return_annotation
    result = "" if given is signature.empty else f" -> {plain(inspect.formatannotation(given))}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= LINE:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){result}"


def shown(parameter: inspect.Parameter) -> str:
    """name: type = default; a long default, or one that is not a literal, is an ellipsis."""
    text = str(parameter.default)
    if parameter.default is not parameter.empty and (len(text) > 40 or "<" in text):
        return plain(str(parameter.replace(default=...)).replace("Ellipsis", "..."))
    return plain(str(parameter))


def plain(text: str) -> str:
    """Annotations without quotes."""
    return re.sub(r"(: |^)'([^']*)'", r"\1\2", text)


def doc_of(value: object) -> str:
    return inspect.cleandoc(value.__doc__ or "") if not isinstance(value, str | int | tuple) else ""


def members(value: type) -> Iterator[tuple[str, object, object]]:
    """A class's own public methods and properties: name, function, and what is documented."""
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain) or isinstance(plain, property):
            yield name, plain.fget if isinstance(plain, property) else plain, plain


def entry(name: str, value: object, room: str) -> str:
    """The paragraph of a public name."""
    if inspect.ismodule(value):
        return f"### {name}\n\nThe module `{room}.{name}`, below.\n"
    if not callable(value):
        return f"### {name}\n\n`{name}`: {type(value).__name__}\n"
    parts = [f"### {name}\n\n```text\n{signature_of(name, value)}\n```\n"]
    text = doc_of(value)
    if text and not (inspect.isclass(value) and text.startswith(f"{name}(")):
        parts.append(f"\n```text\n{text}\n```\n")
    if inspect.isclass(value) and not issubclass(value, BaseException):
        rows = []
        for member, function, documented in members(value):
            what = doc_of(documented)
            form = member if isinstance(documented, property) else signature_of(member, function)
            rows.append(f"{form}\n" + (f"{_indented(what)}\n" if what else ""))
        if rows:
            parts.append("\n```text\n" + "\n".join(rows) + "```\n")
    return "".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def python_page() -> str:
    parts = [f"# Python\n\nEvery public name, from the docstrings. {WRITTEN}\n"]
    for room, (module, how) in ROOMS.items():
        names = sorted(getattr(module, "__all__", ()), key=str.lower)
        parts.append(f"\n## {room}\n\n```text\n{how}\n```\n")
        parts += [f"\n{entry(name, getattr(module, name), room)}" for name in names]
    return "".join(parts)


def operators_page() -> str:
    domains: defaultdict[str, list[str]] = defaultdict(list)
    for key in onnx_ops.CONVERTERS:
        domain, _, name = key.rpartition("::")
        domains[domain or "ai.onnx"].append(name)
    parts = [
        "# Supported operators\n\nEach operator that has a converter. Most ONNX operators are also "
        "counted by tests: [ONNX operators](onnx_support.md). A missing one can be "
        f"[added](../how-to/models.md#add-a-missing-operator). {WRITTEN}\n"
    ]
    for domain, names in sorted(domains.items()):
        parts.append(_listed(f"ONNX, domain `{domain}`", names))
    parts.append(_refused(onnx_import.REASONS))
    aten = {**torch_ops.CONVERTERS, **torch_control.CONTROL}
    parts.append(_listed("PyTorch (`torch.export`)", aten))
    parts.append(_refused(torch.REASONS))
    parts.append(_listed("TensorFlow Lite", {*ops.CONVERTERS, *importer.VARIABLES}))
    parts.append(_refused(importer.REASONS))
    return "".join(parts)


def _listed(title: str, names: Iterable[str]) -> str:
    names = sorted(names, key=str.lower)
    return f"\n## {title}\n\n{len(names)} operators: {', '.join(f'`{n}`' for n in names)}\n"


def _refused(reasons: Mapping[str, str]) -> str:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        by_reason[reason].append(f"`{name}`")
    rows = (f"| {', '.join(names)} | {reason} |\n" for reason, names in by_reason.items())
    return f"\n| not supported | reason |\n|---|---|\n{''.join(rows)}"


def record_page() -> str:
    schema = json.loads((REFERENCE / "record.schema.json").read_text(encoding="utf-8"))
    rows = "".join(f"| `{name}` | {kind} | {text} |\n" for name, kind, text in fields(schema))
    return (
        "# JSON results\n\n`mlc-deploy MODEL --json FILE` writes its results as JSON. "
        "{download}`record.schema.json` is the JSON schema of these files: any validator of draft "
        "2020-12 checks a file against it. `compare`, `report` and `test` read them. "
        f"`null` means unknown. {WRITTEN}\n\n| field | type | meaning |\n|---|---|---|\n{rows}"
    )


def fields(schema: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str, str]]:
    """The path, the type and the meaning of each field of a schema."""
    for name, of in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        kinds = of.get("type", [])
        known = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
        if name not in schema["required"]:
            known = [*known, "if there"]
        inner = of.get("items", of)
        yield path + "[]" * (inner is not of), ", ".join(known), of.get("description", "")
        yield from fields(inner, path + "[]" * (inner is not of))


PAGES = {
    "commands.md": commands_page,
    "python.md": python_page,
    "operators.md": operators_page,
    "record.md": record_page,
}


def main(arguments: Sequence[str]) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    stale = 0
    for name, page in PAGES.items():
        text, path = page(), REFERENCE / name
        if options.check:
            same = path.exists() and path.read_text(encoding="utf-8") == text
            stale += not same
            if not same:
                print(f"{path.name} is not what scripts/reference.py writes", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
