"""Every login shell and start file: the board works, or its user is told what is in the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import connect, errors
from mlc_rpc.facts import read_facts
from mlc_rpc.ssh import clean_ssh
from mlc_rpc.transport import SshUrl
from tests.odd.world import GREETING, SHELLS, World, slug, url

pytestmark = pytest.mark.odd
Runtime = Callable[[str], Path]

# What the user is told, and what to try.
REFUSED = {
    "quitter": (r"its shell does not run a command \(status 3\): maintenance", r"a login shell"),
    "eater": (
        r"its shell ran no command and said nothing: a start file",
        r"\[ -t 0 \] \|\| return",
    ),
    "tmux": (r"its shell does not run a command", r"given: echo uname -m \| ssh -p"),
    "nologin": (r"its shell does not run a command.*This account", r"a login shell"),
    "false": (r"its shell does not run a command \(status 1\)", r"a login shell"),
    "missing": (r"user missing was not let in", r"."),
}
TALKING = (
    "talker",
    "flood",
    "reader",
    "reading csh",
    *(f"printing {s}" for s in ("fish", "zsh", "csh")),
)


@pytest.mark.parametrize("user", [*SHELLS, *TALKING])
def test_a_shell_that_works(user: str, port: int, users: World, runtime_of: Runtime) -> None:
    array = np.random.default_rng(0).standard_normal(10000)
    for _ in range(2):  # the program is there the second time
        with connect(url(user, port), runtime_of) as session:
            np.testing.assert_array_equal(session.tensor(array).numpy(), array)
    (stored,) = users.cache(user).glob("runtime-*")
    assert not list(users.cache(user).glob(".part-*")) and stored.stat().st_size > 100_000
    facts = read_facts(url(user, port), 20)
    assert facts and facts.load is not None
    (gone,) = clean_ssh(SshUrl("127.0.0.1", slug(user), port), 20)
    assert gone.path == str(users.cache(user)) and not users.cache(user).exists()


@pytest.mark.parametrize("user", REFUSED)
def test_a_shell_that_does_not(user: str, port: int, users: World, runtime_of: Runtime) -> None:
    what, attempt = REFUSED[user]
    with pytest.raises(errors.Unreachable) as caught:
        connect(url(user, port), runtime_of, timeout=10)
    assert re.search(what, caught.value.what, re.DOTALL), caught.value
    assert re.search(attempt, caught.value.attempt), caught.value
    assert not users.cache(user).exists()


def test_a_banner_is_no_answer(port: int) -> None:
    assert "mlc-board is" in GREETING  # as an answer began once
