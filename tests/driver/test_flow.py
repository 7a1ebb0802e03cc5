"""What reads what, and how long tensors are there: held against graphs whose answer is known, and
against memory plans, in which no two tensors are in one place at a time."""

from __future__ import annotations

import itertools

import msgpack
import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.details import details
from mlc_deploy.driver.flow import GIVEN, Access, Flow, Region, alive
from mlc_deploy.driver.model_graph import model_graph
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import BlockBuilder, Function, GraphProgram, lower_graph
from mlc_deploy.graph.plan import Place
from mlc_targets import Target
from mlc_targets.object_format import Model, parse_metadata
from tests.cli.command import MODELS
from tests.graph.drawn_programs import program_graph
from tests.onnx_models import light_model


def program_of(function: Function, target: str = "aarch64") -> GraphProgram:
    graphs = model_graph(function, Target(target))
    return lower_graph(graphs.optimized, graphs.module)


def flow_of(program: GraphProgram) -> Flow:
    """As accesses_of, of a program that is not compiled."""

    def region(place: Place) -> Region:
        turns = {number: 2 for number, _ in place.strides}
        moved = [step * (turns[loop] - 1) for loop, step in place.strides]
        begin = place.offset + sum(min(m, 0) for m in moved)
        end = place.offset + place.size + sum(max(m, 0) for m in moved)
        return Region((place.space, place.index), begin, end)

    accesses = []
    for binding, call in zip(program.bindings, program.calls, strict=True):
        regions = [region(place) for place in call.args]
        read = len(binding.call.args)
        written = regions[read : read + len(binding.outputs)]
        accesses.append(Access(call.layer, tuple(regions[:read]), tuple(written)))
    return Flow(model_of(program), accesses)


def model_of(program: GraphProgram) -> Model:
    numbers = {name: n for n, name in enumerate(program.kernels)}
    kernels = [
        {"name": name, "params": [], "scalars": [], "tasks": 1, "workspace": 0} for name in numbers
    ]
    said = {"target": "", "machine": "", "features": [], "kernels": kernels}
    found = parse_metadata(msgpack.packb(said | {"model": program.model_map()})).model
    assert found is not None
    return found


def apart(flow: Flow) -> None:
    """No two tensors of the arena share a byte while both are needed."""
    arena = [t for t in flow.tensors if t.region.memory[0] == "arena"]
    for a, b in itertools.combinations(arena, 2):
        together = a.begin <= b.end and b.begin <= a.end
        overlap = a.region.begin < b.region.end and b.region.begin < a.region.end
        assert not (together and overlap), (a, b)


def test_a_residual() -> None:
    """The first softmax stays until the third, with which its sum is one kernel."""
    bb = BlockBuilder("main")
    x = bb.param("x", (4, 64))
    first = bb.emit("softmax", x, axis=-1)
    second = bb.emit("softmax", first, axis=-1)
    third = bb.emit("softmax", second, axis=0)
    program = program_of(bb.finish([bb.emit("add", first, third)], ["y"]))
    flow = flow_of(program)
    assert [set(reads) for reads in flow.reads] == [{0}, {1}, {1, 2}]
    assert flow.writes == [(1,), (2,), (3,)]
    found = [(t.name, t.region.memory[0], t.begin, t.end) for t in flow.tensors]
    assert [each[1:] for each in found] == [
        ("input", GIVEN, 0), ("arena", 0, 2), ("arena", 1, 2), ("output", 2, 3),
    ]  # fmt: skip
    assert (found[0][0], found[-1][0]) == ("x", "y")
    assert [t.region.size for t in flow.tensors] == [1024] * 4
    assert alive(flow.tensors, 3) == [1024, 2048, 2048]
    assert program.arena == 2048


def test_what_writes_over_its_argument() -> None:
    """An output in its argument's memory is a tensor of its own; they do not count together."""
    bb = BlockBuilder("main")
    x = bb.param("x", (4, 64))
    first = bb.emit("softmax", x, axis=-1)
    second = bb.emit("relu", bb.emit("transpose", bb.emit("softmax", first, axis=0), axes=(1, 0)))
    program = program_of(bb.finish([bb.emit("softmax", second, axis=0)], ["y"]))
    flow = flow_of(program)
    apart(flow)
    assert max(alive(flow.tensors, len(program.calls))) <= program.arena


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "shufflenet", "densenet121"])
def test_memory_plans_of_the_field(name: str) -> None:
    """Concatenations in place, shortcuts, and branches that join."""
    program = program_of(from_onnx(light_model(name)))
    flow = flow_of(program)
    apart(flow)
    used = alive(flow.tensors, len(program.calls))
    assert 0.5 * program.arena_lower_bound <= max(used) <= program.arena_lower_bound
    made = {t for writes in flow.writes for t in writes}
    given = {n for n, t in enumerate(flow.tensors) if t.begin == GIVEN}
    for number, reads in enumerate(flow.reads):
        assert set(reads) <= made | given
        assert all(flow.tensors[t].begin < number for t in reads)
    read = {t for reads in flow.reads for t in reads}
    for number, t in enumerate(flow.tensors):  # nothing is computed that nobody needs
        assert number in read or t.region.memory[0] == "output", t


@pytest.mark.parametrize("seed", range(12))
def test_loops_and_branches(seed: int) -> None:
    program = program_of(program_graph(seed))
    flow = flow_of(program)
    for number, reads in enumerate(flow.reads):
        for t in reads:
            found = flow.tensors[t]
            assert found.begin <= number <= found.end + 1, (number, found)  # 1: it is taken over
    assert all(t.begin <= t.end for t in flow.tensors)


def test_details_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlc.compile(MODELS / "digits_cnn.onnx", "aarch64")
    found = details(model)
    layers = [call.layer for call in model.metadata.model.calls]  # type: ignore[union-attr]
    assert len(found["calls"]) == len(layers) == 7
    first = found["calls"][0]
    assert first["operators"] == ["conv2d", "add", "relu"] and first["weights_bytes"] > 0
    assert first["multiply_accumulates"] == 16 * 16 * 64 * 9
    names = [t["name"] for t in found["tensors"]]
    assert names == ["image", *layers[:-1], "probability"]
    assert found["arena"] == {"bytes": 81_920, "least_bytes": 81_920} and not found["loops"]
    kernels = found["kernels"]
    assert set(kernels) == set(model.metadata.kernels)
    assert "fmla" in kernels["winograd_conv2d_add_relu"]["assembly"]
    assert all(f"def {kernel}(" in text["loops"] for kernel, text in kernels.items())

    def never(*args: object) -> None:
        raise AssertionError("the cache has it")

    monkeypatch.setattr("mlc_deploy.driver.kernels.source_text", never)
    assert details(model) == found


def test_details_of_a_saved_model(tmp_path: object) -> None:
    """Its object says where tensors lie; of its kernels there is no text."""
    model = mlc.compile(MODELS / "digits_mlp.onnx", "host")
    saved = mlc.load_model(model.save(f"{tmp_path}/m.mlc"))
    found, whole = details(saved), details(model)
    assert found["kernels"] is None and found["calls"][0]["operators"] is None
    assert found["tensors"] == whole["tensors"]
    kept = ("reads", "writes", "traffic_bytes", "weights_bytes")
    for mine, other in zip(found["calls"], whole["calls"], strict=True):
        assert [mine[key] for key in kept] == [other[key] for key in kept]


def test_the_assembly_is_that_of_the_object() -> None:
    """Its instructions are as many as the object's code has words."""
    model = mlc.compile(MODELS / "digits_mlp.onnx", "aarch64")
    assembly = details(model)["kernels"]
    for name, compiled in (model.library.compiled or {}).items():
        lines = [line.strip() for line in assembly[name]["assembly"].splitlines()]
        code = [x for x in lines if x and not x.startswith((".", "//")) and not x.endswith(":")]
        assert 4 * len(code) <= len(compiled.code)
        words = np.frombuffer(compiled.code[: len(compiled.code) // 4 * 4], "<u4")
        assert (words == 0xD65F03C0).sum() >= code.count("ret") > 0  # ret
