"""Writes the pages of docs/reference that are generated: commands.md from the commands' --help,
python.md from the docstrings of the public names.

    python scripts/reference.py [--check]

With --check it writes nothing; its exit status says whether the pages are those of these sources.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import click

import mlc_deploy
import mlc_rpc
import mlc_targets
from mlc_deploy import graph, te, tune
from mlc_deploy.cli.main import COMMANDS, cli
from mlc_deploy.cli.topics import TOPICS

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
    """name: type = default; a long default, or one that is no literal, is an ellipsis."""
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


PAGES = {"commands.md": commands_page, "python.md": python_page}


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
