"""Talking to a board: `connect` to one, then load, run and time on it.

    transport   bytes to the program on a board: local, qemu, ssh
    link        requests and responses over such bytes (the wire is in wire.py)
    session     a board in use: tensors, blobs, modules

This package imports nothing of the compiler.
"""

from mlc_rpc.connect import connect
from mlc_rpc.counters import CallCounts, CounterError
from mlc_rpc.errors import (
    Crashed,
    Lost,
    Mismatch,
    OutOfMemory,
    ProtocolError,
    Refused,
    RpcError,
    Timeout,
    Unreachable,
)
from mlc_rpc.module import ModelRun, RemoteFunction, RemoteModule, Run
from mlc_rpc.recover import Interruption, persist
from mlc_rpc.session import Device, Session
from mlc_rpc.tensor import RemoteTensor
from mlc_rpc.timing import Conditions, Timing
from mlc_rpc.verdict import Finding

__all__ = [
    "CallCounts",
    "Conditions",
    "CounterError",
    "Crashed",
    "Device",
    "Finding",
    "Interruption",
    "Lost",
    "Mismatch",
    "ModelRun",
    "OutOfMemory",
    "ProtocolError",
    "Refused",
    "RemoteFunction",
    "RemoteModule",
    "RemoteTensor",
    "RpcError",
    "Run",
    "Session",
    "Timeout",
    "Timing",
    "Unreachable",
    "connect",
    "persist",
]
