"""`mlc-deploy help TOPIC`: groups of options, and what targets, boards and precisions there are."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from textwrap import fill

import click

from mlc_targets import board_names
from mlc_targets.resolve import SHORT_NAMES

from .help import ADVANCED, BOARD, COMPILING, FARM, HELP_NAMES, MODEL, OUTPUTS, by_group
from .options import Misuse

OPTIONS = {
    "model": MODEL, "compiling": COMPILING, "board": BOARD, "farm": FARM, "outputs": OUTPUTS,
    "advanced": ADVANCED,
}  # fmt: skip
BOARDS = """\
--board B says where the model runs.

  ssh://[user@]host[:port]  a board with an ssh server; it needs nothing else
  tcp://host:port           a board that runs `mlc-runtime --listen`
  qemu://[CPU]              an emulated board, such as qemu://cortex-a53
  local://                  this machine
  labgrid://place           a place of a labgrid coordinator (extra 'labgrid')
  NAME                      a board from `mlc-deploy board enroll NAME URL`
  none                      no board: compile only

Without --board, the model runs on this machine if it can run the target's
code, else on QEMU. QEMU counts executed instructions, which are the same on
every machine; its seconds say nothing about a board.
"""
TARGETS = """\
--target T says what to compile for.

  short name     {short}
  MAKER/BOARD    raspberry-pi/4b; with -armv7a or -aarch64 for another system
  CPU levels     aarch64:base,dotprod,i8mm; the board uses the best that it runs
  target string  'llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7'
  c              C11 source

Without --target, the board says what it is.

Boards:
"""
SYSTEMS = ("-armv7a", "-aarch64")
PRECISION = """\
--precision P says what the layers compute in.

  float32  as most models are stored (default)
  float16  half the memory; faster on cores that compute in float16
           (Cortex-A55, A76 and later), slower on cores that do not
           (Cortex-A7, A53, A72)
  int8     quantized after training; --data gives calibration data. Layers that
           would cost more in int8 stay float. `mlc-deploy quantize` writes the
           quantized model and reports its accuracy.

A model that is quantized already (QDQ, QLinear operators, .tflite) computes in
int8 as it is, without this option.
"""


def targets() -> str:
    """The forms of --target, and the boards by maker."""
    makers: dict[str, list[str]] = {}
    for name in sorted(board_names()):
        maker, slash, board = name.partition("/")
        if slash and not board.endswith(SYSTEMS):
            makers.setdefault(maker, []).append(board)
    boards = [
        fill(
            ", ".join(names),
            78,
            initial_indent=f"  {maker:<13} ",
            subsequent_indent=" " * 16,
            break_on_hyphens=False,
        )
        for maker, names in makers.items()
    ]
    return TARGETS.format(short=", ".join(sorted(SHORT_NAMES))) + "\n".join(boards)


TEXTS: dict[str, Callable[[], str]] = {
    "targets": targets, "boards": lambda: BOARDS, "precision": lambda: PRECISION
}  # fmt: skip
TOPICS = (*OPTIONS, *TEXTS)


@click.command("help", context_settings={"help_option_names": HELP_NAMES})
@click.argument("topic", required=False, metavar="[TOPIC]")
@click.pass_context
def help(ctx: click.Context, topic: str | None) -> None:
    """Explain targets, boards, precision, or a group of options.

    TOPIC is targets, boards, precision, a command, or a group of options: model, compiling, board,
    farm, outputs, advanced.
    """
    assert ctx.parent
    commands = ctx.parent.command
    assert isinstance(commands, click.Group)
    text = _of(commands, ctx.parent, topic or "run")
    if text is None:
        known = (*TOPICS, *commands.list_commands(ctx)[1:])
        near = get_close_matches(topic or "", known, 1) or ("targets",)
        raise Misuse(f"there is no topic '{topic}'", mend=f"mlc-deploy help {near[0]}")
    click.echo(text.rstrip("\n"))


def _of(commands: click.Group, ctx: click.Context, topic: str) -> str | None:
    """The text of a topic or a command; None for any other word."""
    if topic in TEXTS:
        return TEXTS[topic]()
    command = commands.get_command(ctx, "run" if topic in OPTIONS else topic)
    if command is None:
        return None
    inner = click.Context(command, info_name=topic, parent=ctx)
    if topic not in OPTIONS:
        return command.get_help(inner)
    formatter = inner.make_formatter()
    group = OPTIONS[topic]
    with formatter.section(group):
        formatter.write_dl(by_group(command.get_params(inner), inner)[group])
    return formatter.getvalue()
