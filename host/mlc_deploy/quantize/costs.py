"""The cost of a net on a target: executed instructions by layer, counted under QEMU.

The compiled kernels are counted, including those that convert between floats and integers. The
costs of plans would not do: they leave out elementwise kernels and fused operators, so they miss
the conversions that decide whether a small layer gains. QEMU counts, so no board is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from mlc_rpc import Session
from mlc_targets import Target, qemu_cpu

from ..board.connect import connect
from ..driver.compile import compile
from ..driver.deploy import RUN_SECONDS
from ..driver.deployment import described_model, fixed_shape, layers_of
from ..driver.linked import FileName
from ..frontend import from_onnx
from .net import Net
from .run import Sample

EMULATED = ("aarch64", "arm")


@dataclass(frozen=True)
class Costs:
    """Executed instructions of one run, by the name of each kernel's first node."""

    by_node: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_node.values())

    def of_layers(self, net: Net, chosen: Collection[str] = ()) -> dict[str, int]:
        """The costs by layer; those of chosen layers include the conversion of their data."""
        owners = {layer.data: layer.name for layer in net.layers if layer.name in chosen}
        names = {layer.name for layer in net.layers}
        found = dict.fromkeys(names, 0)
        for node, cost in self.by_node.items():
            owner = _owner(node, names, owners)
            if owner is not None:
                found[owner] += cost
        return found


def _owner(node: str, layers: Collection[str], owners: Mapping[str, str]) -> str | None:
    """The layer that a kernel's first node belongs to: node, node.part or tensor.quantize.part."""
    name = node
    while True:
        if name in layers:
            return name
        for part in (".quantize", ".dequantize"):
            if name.endswith(part) and name.removesuffix(part) in owners:
                return owners[name.removesuffix(part)]
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None


class Meter:
    """Counts the costs of nets on a target."""

    def __init__(
        self, target: Target, sample: Sample, session: Session, link: Sequence[FileName] = ()
    ) -> None:
        self.target, self.sample, self.session, self.link = target, sample, session, link

    def __call__(self, net: Net) -> Costs:
        """The costs of a net. Raises ImporterError, GraphError, and RpcError if the run fails."""
        shapes = {name: array.shape for name, array in self.sample.items()}
        function = from_onnx(net.proto(), shapes, converters=net.converters)
        model = compile(function, self.target, link=self.link)
        module = self.session.load(model)
        try:
            described = described_model(model)
            tensors = [self.session.tensor(self.sample[p.name]) for p in described.inputs]
            results = [self.session.empty(fixed_shape(p), p.dtype) for p in described.outputs]
            ran = module.entry.profile(*tensors, *results, threads=1, timeout=RUN_SECONDS)
        finally:
            module.close()
        assert ran.counts is not None
        found: dict[str, int] = {}
        layers = [layer for layer in layers_of(model) if not layer.on_host]
        for layer, counts in zip(layers, ran.counts, strict=True):
            found[layer.name] = found.get(layer.name, 0) + sum(counts.by_class.values())
        return Costs(found)


def meter(target: Target, sample: Sample, link: Sequence[FileName] = ()) -> Meter:
    """A meter on the target's emulated CPU; link: as `compile` takes it. Raises Unreachable if QEMU
    is missing, TargetError."""
    session = connect(f"qemu://{qemu_cpu(target)}", machine=target.arch)
    return Meter(target, sample, session, link)


def counted(target: Target) -> bool:
    """Whether QEMU counts the target's instructions: it does for ARM."""
    return target.arch in EMULATED


def within_cost(
    net: Net, form: Callable[[Collection[str]], Net], measure: Callable[[Net], Costs],
    before: Costs,
    chosen: frozenset[str],
) -> tuple[frozenset[str], Costs]:  # fmt: skip
    """The layers of `chosen` that cost less in integers, and the costs of that net.

    form makes a net with the given layers in integers. Layers that cost more than before become
    float, as long as this makes the whole net cheaper.
    """
    costs = measure(form(chosen))
    was = before.of_layers(net)
    while chosen:
        now = costs.of_layers(net, chosen)
        losses = sorted((n for n in chosen if now[n] > was[n]), key=lambda n: was[n] - now[n])
        while losses:
            fewer = chosen.difference(losses)
            found = measure(form(fewer))
            if found.total < costs.total:
                chosen, costs = fewer, found
                break
            losses = losses[: len(losses) // 2]
        else:
            return chosen, costs
    return chosen, costs
