"""What reads what, and how long tensors are there: held against graphs whose answer is known, and
against the memory plan, for which no two tensors may be in one place at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.deploy import host_calls_of
from mlc_deploy.driver.details import details
from mlc_deploy.driver.flow import GIVEN, Flow, accesses_of, alive
from mlc_deploy.graph import BlockBuilder
from tests.cli.command import MODELS
from tests.onnx_models import light_model


def flow_of(model: Any) -> Flow:
    hosts = host_calls_of(model)
    at = [host.at_call for host in hosts]
    return Flow(model.metadata.model, accesses_of(model.metadata, hosts), at)


def apart(flow: Flow) -> None:
    """No two tensors of the arena share a byte while both are needed."""
    arena = [t for t in flow.tensors if t.region.memory[0] == "arena"]
    for a, b in itertools.combinations(arena, 2):
        together = a.begin <= b.end and b.begin <= a.end
        overlap = a.region.begin < b.region.end and b.region.begin < a.region.end
        assert not (together and overlap), (a, b)
