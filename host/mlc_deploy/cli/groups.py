"""Groups of commands, with the same answers by every version of click that pyproject.toml allows.

Versions differ in what a group without a command does, in which errors know the nearest names, and
in how they word them.
"""

from __future__ import annotations

from difflib import get_close_matches

import click


class NoCommand(click.UsageError):
    """A group was called without a command; the message is the group's help."""


class NoSuchCommand(click.UsageError):
    """`near` are the commands with names like the one that was given."""

    def __init__(self, name: str, near: list[str], ctx: click.Context) -> None:
        super().__init__(f"no such command '{name}'", ctx)
        self.near = near


class Group(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise NoCommand(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None:
            raise NoSuchCommand(name, get_close_matches(name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


def worded(error: click.UsageError) -> str:
    """What is wrong, by the error's own fields where its message depends on click's version."""
    match error:
        case click.NoSuchOption(option_name=name, possibilities=near):
            return _with_near(f"no such option '{name}'", near or ())
        case NoSuchCommand(near=near):
            return _with_near(error.message, near)
        case _:
            return error.format_message()


def _with_near(text: str, near: list[str] | tuple[str, ...]) -> str:
    names = ", ".join(f"'{name}'" for name in sorted(near))
    match len(near):
        case 0:
            return text
        case 1:
            return f"{text}. Did you mean {names}?"
        case _:
            return f"{text}. (Did you mean one of: {names}?)"
