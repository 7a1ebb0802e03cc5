"""Members that answer wrongly: another member does some calls again, and the answers are compared.

Only answers that must be equal can be: the object of a build, by its hash, and the executed
instructions of an emulated board. Times differ; outputs are compared with a reference anyway. When
two members differ, a judge decides: this machine builds the object itself, or a third member counts
again. Whoever is wrong is named, and takes no more calls of this command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from ..driver.builder import build_object, builder
from ..driver.deployment import Deployment
from ..driver.workers import WorkerPool
from ..tuned import Measured

EVERY = 16  # answers, of which one is checked: at most 6 % of a farm's time


def evidence(result: Any) -> bytes | None:
    """What two right answers to a call have in common; None if nothing has to be equal."""
    match result:
        case bytes():
            return blake2b(result, digest_size=16).digest()
        case Measured(verdict="ok", instructions=int(count), timing="emulated"):
            return str(count).encode()
        case Deployment() if result.emulated and result.instructions is not None:
            return str(result.instructions).encode()
    return None


def is_due(number: int) -> bool:
    """Whether the answer with a number is checked: the first, and then one of EVERY."""
    return number % EVERY == 0


class Judge:
    """Builds on this machine what two members build differently. close() ends its process."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None

    def built(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The right answer; None if the call is not a build, or fails here."""
        if function is not build_object:
            return None
        self._pool = self._pool or builder(1)
        try:
            return self._pool.submit(function, *args).result()
        except Exception:  # whatever the compiler makes of it proves nothing
            return None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def wrong_ones(answers: Mapping[str, Any], right: Any) -> list[str]:
    """The members whose answers differ from the right one."""
    return [member for member, answer in answers.items() if evidence(answer) != evidence(right)]


def majority(answers: Mapping[str, Any]) -> Any:
    """The answer that most members give; None if no two agree, or fewer than three answered."""
    given = Counter(evidence(answer) for answer in answers.values())
    (most, count), *_ = given.most_common()
    if len(answers) < 3 or count < 2:
        return None
    return next(answer for answer in answers.values() if evidence(answer) == most)
