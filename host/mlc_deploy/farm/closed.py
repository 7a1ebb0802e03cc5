"""Dask's scheduler and workers, closed: what a peer can send runs nothing but `perform`.

Dask trusts everyone who connects: any message may hold a pickle, and handlers run functions, import
files and write them. Here

- a message's pickle holds what a submission of `perform` consists of, by an unpickler that knows
  only that, in the place of the one function through which all of Dask unpickles;
- an enumeration in a message is a worker's status and nothing else, where Dask takes any attribute
  of its modules;
- a server has the handlers below and no others, no plugins, no extensions but stealing, and no HTTP
  port;
- where certificates name roles, each handler is for one role;
- a client's stream concerns itself: Dask takes a message's word for whose it is.

Calls and results within are sealed (seal.py).
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import distributed
from dask._task_spec import Task
from distributed.core import Status
from distributed.protocol import core as protocol_core
from distributed.protocol import pickle as dask_pickle
from distributed.stealing import WorkStealing
from distributed.worker_state_machine import ExecuteFailureEvent

from .keys import MEMBER, SCHEDULER, USER, Keys
from .work import perform

IN_MESSAGES = {
    ("builtins", "bytes"),
    ("dask._expr", "Expr._reconstruct"),
    ("dask._expr", "LLGExpr"),
    ("dask._task_spec", "Task"),
    ("mlc_deploy.farm.work", "perform"),
}
ANYONE = ""
# The handlers of connections that others open, and the roles that may use them.
OF_MEMBERS = {"get_data": SCHEDULER, "free_keys": SCHEDULER, "ping": SCHEDULER}
OF_THE_SCHEDULER = {
    "identity": ANYONE,
    "versions": ANYONE,
    "register-client": USER,
    "gather": USER,
    "get_task_status": USER,
    "waiting": USER,
    "register-worker": MEMBER,
    "heartbeat_worker": MEMBER,
}
# The messages of the streams that follow a registration.
OF_CLIENTS = {
    "update-graph", "client-releases-keys", "heartbeat-client", "close-client", "cancel-keys",
}  # fmt: skip
OF_WORKERS = {
    "task-finished", "task-erred", "release-worker-data", "add-keys", "reschedule", "keep-alive",
    "worker-status-change", "request-refresh-who-has", "steal-response", "long-running",
}  # fmt: skip


class Refused(Exception):
    """A message of a peer that is not one of a farm's."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in IN_MESSAGES:
            raise Refused(f"a message names {module}.{name}")
        return super().find_class(module, name)


def _loads(content: Any, *, buffers: Any = ()) -> Any:
    return _Unpickler(io.BytesIO(bytes(content)), buffers=buffers or None).load()


protocol_serialize: Any = import_module("distributed.protocol.serialize")  # the package hides it
_decode = protocol_serialize.msgpack_decode_default


def _decoded(obj: Any) -> Any:
    if "__Enum__" in obj:
        if (obj.get("__module__"), obj.get("__name__")) != ("distributed.core", "Status"):
            raise Refused("a message names another enumeration than a status")
        return Status[obj["name"]]
    return _decode(obj)


def restrict() -> None:
    """Restricts what all of this process's connections of Dask unpickle."""
    dask_pickle.loads = _loads
    protocol_core.msgpack_decode_default = protocol_serialize.msgpack_decode_default = _decoded


def role_in(certificate: Mapping[str, Any]) -> str:
    """The role that a peer's certificate names, as `ssl` describes certificates."""
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    return next((str(v) for k, v in names if k == "organizationalUnitName"), ANYONE)


class _Closed:
    """The part that both servers share. `roles`: those that certificates name are compared."""

    roles = False
    handlers: dict[str, Any]

    def keep_handlers(self, of: Mapping[str, str]) -> None:
        self.handlers = {op: self.handlers[op] for op in of}
        self._allowed = dict(of)
        self.blocked_handlers: list[str] = []

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Serves nothing on HTTP."""

    async def _handle_comm(self, comm: Any) -> None:
        if self.roles:
            role = role_in(comm.extra_info.get("peercert") or {})
            own = {op for op, of in self._allowed.items() if of in (ANYONE, role)}
            comm = _Filtered(comm, own, {})
        await super()._handle_comm(comm)  # type: ignore[misc]


class _Filtered:
    """A connection of which messages arrive only if they are allowed. `fixed`: fields of messages
    that the sender does not decide."""

    def __init__(
        self, comm: Any, allowed: set[str], fixed: Mapping[str, Any] | None = None
    ) -> None:
        self.unfiltered, self._ops, self._fixed = comm, allowed | {"close"}, dict(fixed or {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)

    def __hash__(self) -> int:
        return hash(self.unfiltered)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.unfiltered

    async def read(self, deserializers: Any = None) -> Any:
        message = await self.unfiltered.read(deserializers=deserializers)
        each = message if isinstance(message, (tuple, list)) else (message,)
        for one in each:
            if isinstance(one, dict):
                if one.get("op") not in self._ops:
                    self.unfiltered.abort()
                    raise distributed.comm.CommClosedError(f"{one.get('op')} is not for this peer")
                one.update({name: value for name, value in self._fixed.items() if name in one})
        return message


class Member(_Closed, distributed.Worker):  # type: ignore[misc]
    """A worker of a farm."""

    def __init__(self, scheduler: str, keys: Keys, **options: Any) -> None:
        restrict()
        super().__init__(
            scheduler, security=keys.security(), extensions={}, dashboard=False, **options
        )
        self.roles = keys.folder is not None
        self.keep_handlers(OF_MEMBERS)

    async def plugin_add(self, *_: Any, **__: Any) -> dict[str, str]:
        """Takes no plugins, which are code."""
        return {"status": "OK"}

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        spec = self.state.tasks[key].run_spec
        if not is_call(spec):
            return ExecuteFailureEvent.from_exception(
                Refused("no call of a farm"), key=key, run_id=self.state.tasks[key].run_id,
                stimulus_id=stimulus_id,
            )  # fmt: skip
        return await super().execute(key, stimulus_id=stimulus_id)


def is_call(spec: Any) -> bool:
    """Whether a task of Dask is perform(bytes)."""
    return (
        type(spec) is Task
        and spec.func is perform
        and not spec.kwargs
        and [type(arg) for arg in spec.args] == [bytes]
    )


class Queue(_Closed, distributed.Scheduler):  # type: ignore[misc]
    """The scheduler of a farm."""

    def __init__(self, keys: Keys, **options: Any) -> None:
        restrict()
        super().__init__(
            security=keys.security(), extensions={"stealing": WorkStealing}, dashboard=False,
            **options,
        )  # fmt: skip
        self.roles = keys.folder is not None
        self.handlers["waiting"] = self.waiting
        self.keep_handlers(OF_THE_SCHEDULER)

    def waiting(self) -> dict[str, int]:
        """The number of calls that wait or run, by the resource that they ask for."""
        tasks = [t for t in self.tasks.values() if t.state != "memory"]
        return dict(Counter(r for t in tasks for r in t.resource_restrictions or ()))

    async def handle_stream(self, comm: Any, extra: dict[str, Any] | None = None) -> None:
        allowed = OF_CLIENTS if extra and "client" in extra else OF_WORKERS
        fixed = {**(extra or {}), "force": False, "actors": None}
        plain = getattr(comm, "unfiltered", comm)  # requests are over on this connection
        await super().handle_stream(_Filtered(plain, allowed | {"close-stream"}, fixed), extra)

    def _create_taskstate_from_graph(self, **graph: Any) -> Any:
        client = self.clients[graph["client"]]
        for key, spec in graph["dsk"].items():
            known = self.tasks.get(key)
            if known is not None and client not in (known.who_wants or ()):
                raise Refused("a call of another user")
            if not is_call(spec):
                raise Refused("no call of a farm")
        if not graph["keys"] <= graph["dsk"].keys():
            raise Refused("results of another user")
        return super()._create_taskstate_from_graph(**graph)
