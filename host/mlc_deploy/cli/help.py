"""What --help prints: options in groups, and examples that can be pasted.

`grouped(GROUP, "--name", …)` is click's option with the group that --help lists it in, and
`command(examples=…)` is click's command that prints its options by group and its examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

MODEL = "Model and inputs"
QUANTIZATION = "Quantization"
SAMPLING = "Sampling"
SEARCH = "Search"
COMPILING = "Compiling"
BOARD = "Board"
FARM = "Farm"
OUTPUTS = "Checks and outputs"
ADVANCED = "Advanced"
GROUPS = (
    MODEL, QUANTIZATION, SAMPLING, SEARCH, COMPILING, BOARD, FARM, OUTPUTS, ADVANCED,
)  # fmt: skip
HELP_NAMES = ("-h", "--help")


class Option(click.Option):
    """An option of a group. rare: `mlc-deploy --help` leaves it to `mlc-deploy help TOPIC`."""

    def __init__(self, *names: Any, group: str, rare: bool = False, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group
        self.rare = rare


def grouped(
    group: str, *names: str, rare: bool = False, **attributes: Any
) -> Callable[[F], F]:  # fmt: skip
    """click.option in a group of --help."""
    return click.option(*names, cls=Option, group=group, rare=rare, **attributes)


def group_of(parameter: click.Parameter) -> str:
    """The group of an option; --help itself, which click makes, is an advanced one."""
    return parameter.group if isinstance(parameter, Option) else ADVANCED


def by_group(
    parameters: Iterable[click.Parameter], ctx: click.Context
) -> dict[str, list[tuple[str, str]]]:
    """The rows of --help, option and text, by group in the order of GROUPS."""
    rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for parameter in parameters:
        row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if row is not None:
            rows[group_of(parameter)].append(row)
    return {group: found for group, found in rows.items() if found}


class Command(click.Command):
    """A command whose help lists options by group, then examples: a comment and a command each."""

    def __init__(self, name: str | None, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.context_settings = {"help_option_names": HELP_NAMES, **self.context_settings}
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, rows in by_group(self.get_params(ctx), ctx).items():
            with formatter.section(group):
                formatter.write_dl(rows)
        self.format_examples(formatter)

    def format_examples(self, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


command = partial(click.command, cls=Command)
