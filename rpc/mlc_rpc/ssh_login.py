"""Logging in by paramiko: keys of the agent and of files, passwords, and what a server asks.

What a person typed is kept for this process, so that a connection that breaks is made again without
a question.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from mlc_rpc import screen
from mlc_rpc.known_hosts import NO_KEY
from mlc_rpc.ssh_config import Host
from mlc_targets.text import shown

QUESTIONS = 3  # how often a password is asked for
STEPS = 6  # a server may want several ways to log in, one after the other
TYPING_SECONDS = 300.0  # a person may take so long
AGENT_SECONDS = 60.0  # an agent may ask a person, too
KINDS = (paramiko.RSAKey, paramiko.ECDSAKey, paramiko.Ed25519Key)

Key = Any  # a paramiko.PKey or a key of the agent
_typed: dict[tuple[str, ...], Any] = {}  # by what was asked for: a password, or a key


class NotLetIn(Exception):
    """The server refused; `attempt` is the way out ("" for the usual one). `told`: a person was, or
    would have been, asked."""

    def __init__(self, what: str, attempt: str = "", told: bool = False) -> None:
        super().__init__(what)
        self.attempt, self.told = attempt, told


class TooManyKeys(NotLetIn):
    """The server hung up before all keys were offered."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Which keys to offer: `strangers` are keys of the agent that no option names."""

    strangers: bool
    files: bool

    @property
    def fewer(self) -> Offer | None:
        """What is worth another connection after the server took no more keys."""
        if self.strangers:
            return Offer(False, True)
        return Offer(False, False) if self.files else None


EVERYTHING = Offer(True, True)


def log_in(transport: paramiko.Transport, host: Host, offer: Offer, secrets: bool = True) -> None:
    """Logs in. `secrets`: whether a password may be sent.

    Raises NotLetIn, TooManyKeys, SSHException.
    """
    _Login(transport, host, offer, secrets).run()


class _Login:
    def __init__(
        self, transport: paramiko.Transport, host: Host, offer: Offer, secrets: bool
    ) -> None:
        self.transport, self.host, self.secrets = transport, host, secrets
        self.offered = 0
        self.locked: list[str] = []  # key files whose passphrase nobody was asked for
        self.keys = _keys(host, offer, self.locked)
        self.asks = screen.can_ask() and not host.quiet
        self.ask = {"keyboard-interactive": self._interactive, "password": self._password}

    def run(self) -> None:
        try:
            if not (allowed := self.transport.auth_none(self.host.user)):
                return
        except paramiko.BadAuthenticationType as error:
            allowed = error.allowed_types
        for _ in range(STEPS):
            if not (allowed := self._step(allowed)):
                return
        raise NotLetIn("its server wants ever more ways to log in")

    def _step(self, allowed: Sequence[str]) -> Sequence[str]:
        """One way to log in. Returns what the server wants next; nothing at the end."""
        ways = [way for way in allowed if way in self.host.methods]
        if "publickey" in ways and (left := self._by_key()) is not None:
            return left
        refusals: list[NotLetIn] = []
        for way in (way for way in self.ask if way in ways):
            if not self.secrets:
                raise NotLetIn("no password goes to a host whose key has changed")
            try:
                return self.ask[way]()
            except NotLetIn as error:
                refusals.append(error)
                if not self.transport.is_active():
                    break
        # One that was for want of a person, or a wrong password, says more than the others.
        raise next(
            (refusal for refusal in reversed(refusals) if refusal.told),
            NotLetIn(self._why_no_key(allowed)),
        )

    # ---- Keys

    def _by_key(self) -> Sequence[str] | None:
        """None if no key is taken."""
        for key in self.keys:
            try:
                self.offered += 1
                left: Sequence[str] = self.transport.auth_publickey(self.host.user, key)
                return left
            except paramiko.BadAuthenticationType:
                return None
            except paramiko.AuthenticationException as error:
                if not self.transport.is_active():
                    raise self._too_many() from error
            except (paramiko.SSHException, OSError) as error:
                # An agent that does not sign, or a kind that this server does not know.
                if not self.transport.is_active():
                    raise self._too_many() from error
        return None

    def _too_many(self) -> TooManyKeys:
        return TooManyKeys(
            f"its server hung up after {self.offered} keys were offered: too many are not its own",
            f"in ~/.ssh/config, under 'Host {self.host.alias}', the lines\n"
            "       IdentityFile ~/.ssh/KEY and IdentitiesOnly yes; or ssh-add -D",
        )

    def _why_no_key(self, allowed: Sequence[str]) -> str:
        if "publickey" not in allowed:
            ways = ", ".join(shown(way) for way in allowed)
            return f"its server wants one of: {ways}"
        if self.locked:
            return f"the key {self.locked[0]} has a passphrase, and no other key is taken"
        count = {0: "there is no key here", 1: "the key here is not taken"}
        return count.get(self.offered, f"none of {self.offered} keys is taken")

    # ---- Questions

    def _need_person(self, what: str) -> None:
        if self.asks:
            return
        why = "BatchMode is on" if self.host.quiet else "stdin is not a terminal to ask on"
        raise NotLetIn(f"it wants {what}, and {why}", told=True)

    def _password(self) -> Sequence[str]:
        place = ("password", self.host.board)
        if place in _typed:
            with contextlib.suppress(paramiko.AuthenticationException):
                return self._sent(_typed[place])
            del _typed[place]
        self._need_person("a password")
        for _ in range(QUESTIONS):
            if not self.transport.is_active():
                break
            password = self._asked(f"{self.host.user}@{self.host.name}'s password:")
            with contextlib.suppress(paramiko.AuthenticationException):
                left = self._sent(password)
                _typed[place] = password
                return left
        raise NotLetIn("wrong password", self._retry(), True)

    def _sent(self, password: str) -> Sequence[str]:
        left: Sequence[str] = self.transport.auth_password(self.host.user, password, fallback=False)
        return left

    def _asked(self, question: str, echo: bool = False) -> str:
        try:
            return screen.ask(question, echo)
        except EOFError as error:
            raise NotLetIn("no password was typed", self._retry(), True) from error

    def _retry(self) -> str:
        return f"the password that this takes, too: {self.host.command}"

    def _interactive(self) -> Sequence[str]:
        """The server's own questions: a password, a second factor."""
        place = ("answer", self.host.board)
        for _ in range(QUESTIONS):
            count, secret = 0, ""

            def answer(prompt: str, echo: bool) -> str:
                nonlocal count, secret
                count += 1
                is_secret = not echo and "assword" in prompt
                if is_secret and place in _typed:
                    return str(_typed[place])
                self._need_person(f"an answer to '{shown(prompt.strip())}'")
                text = self._asked(f"({self.host.user}@{self.host.name}) {prompt}", echo)
                secret = text if is_secret else secret
                return text

            try:
                left = self._converse(answer)
                if secret:
                    _typed[place] = secret
                return left
            except paramiko.AuthenticationException as error:
                _typed.pop(place, None)
                if not count:
                    raise NotLetIn("its server asks this user nothing") from error
                if not self.transport.is_active():
                    break
        raise NotLetIn("wrong password, or another answer is wrong", self._retry(), True)

    def _converse(self, answer: Callable[[str, bool], str]) -> Sequence[str]:
        """Answers in this thread what paramiko's thread is asked: Ctrl-C comes here."""
        questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()

        def handler(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> Any:
            questions.put((title, instructions, prompts))
            if (given := answers.get()) is None:
                raise paramiko.SSHException("nobody answers")
            return given

        def wait() -> None:
            try:
                questions.put(self.transport.auth_interactive(self.host.user, handler))
            except BaseException as error:
                questions.put(error)

        patience, self.transport.auth_timeout = self.transport.auth_timeout, TYPING_SECONDS
        threading.Thread(target=wait, name="ssh questions", daemon=True).start()
        try:
            while True:
                match questions.get():
                    case BaseException() as error:
                        raise error
                    case (title, instructions, prompts):
                        answers.put(self._answered(title, instructions, prompts, answer))
                    case left:
                        done: Sequence[str] = left
                        return done
        finally:
            answers.put(None)
            self.transport.auth_timeout = patience

    def _answered(
        self,
        title: str,
        instructions: str,
        prompts: Sequence[tuple[str, bool]],
        answer: Callable[[str, bool], str],
    ) -> list[str]:
        words = " ".join(filter(None, (shown(title.strip()), shown(instructions.strip()))))
        given = []
        for prompt, echo in prompts:
            given.append(answer(f"{words} {prompt}" if words else prompt, echo))
            words = ""
        return given


# ---- Keys of the agent and of files


def _keys(host: Host, offer: Offer, locked: list[str]) -> Iterator[Key]:
    """The user's keys: named by an option or in a usual file, then others of the agent, then those
    with a passphrase, which a person is asked for."""
    held = _agent_keys(host) if offer.strangers or offer.files else []
    named = {blob for path in host.keys if (blob := _public_blob(path))} if offer.files else set()
    yield from (key for key in held if key.asbytes() in named)
    have = {key.asbytes() for key in held}
    files = [path for path in host.keys if offer.files and _public_blob(path) not in have]
    with_passphrase = []
    for path in files:
        try:
            yield from _of_file(path, None)
        except paramiko.PasswordRequiredException:
            with_passphrase.append(path)
    if offer.strangers and not host.only_keys:
        yield from (key for key in held if key.asbytes() not in named)
    for path in with_passphrase:
        if ("key", path) not in _typed and not (screen.can_ask() and not host.quiet):
            locked.append(path)
        else:
            yield from _unlocked(path)


def _agent_keys(host: Host) -> list[Key]:
    if host.agent == "":
        return []
    try:
        if host.agent is None:
            return list(paramiko.Agent().get_keys())
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(AGENT_SECONDS)
        link.connect(host.agent)
        agent = paramiko.agent.AgentSSH()
        agent._connect(link)  # there is no public way to another socket than SSH_AUTH_SOCK's
        return list(agent.get_keys())
    except (paramiko.SSHException, OSError, AttributeError):
        return []


def _public_blob(path: str) -> bytes | None:
    """The public key that belongs to a key file, or that the file is."""
    for file in (f"{path}.pub", path):
        try:
            fields = Path(file).read_bytes()[:16384].split(None, 2)
            if len(fields) > 1 and not fields[0].startswith(b"-"):
                return b64decode(fields[1], validate=True)
        except (OSError, ValueError):
            continue
    return None


def _of_file(path: str, passphrase: str | None) -> Iterator[Key]:
    """The key of a file, first with its certificate; none if it cannot be read. Raises
    PasswordRequiredException."""
    for kind in KINDS:
        try:
            key = kind.from_private_key_file(path, passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except (*NO_KEY, OSError):
            continue
        certificate = f"{path}-cert.pub"
        if os.path.exists(certificate):
            with contextlib.suppress(*NO_KEY, OSError):
                certified = kind.from_private_key_file(path, passphrase)
                certified.load_certificate(certificate)
                yield certified
        yield key
        return


def _unlocked(path: str) -> Iterator[Key]:
    """The keys of a file with a passphrase; none if a person gives an empty one, or wrong ones."""
    if ("key", path) in _typed:
        yield from _typed["key", path]
        return
    for _ in range(QUESTIONS):
        try:
            passphrase = screen.ask(f"passphrase of {path}:")
        except EOFError:
            return
        if not passphrase:
            return
        with contextlib.suppress(paramiko.PasswordRequiredException):
            if keys := list(_of_file(path, passphrase)):
                _typed["key", path] = keys
                yield from keys
                return
