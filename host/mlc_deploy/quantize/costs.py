"""What a net costs on a target: executed instructions by layer, counted under QEMU.

The compiler's own plans decide how layers compute, conversions between floats and integers are
kernels or parts of kernels, and all of them are counted. The plans' own costs would not do: they
leave out elementwise kernels, which have no plan, and what fuses with a plan, so they miss the
conversions that decide whether a small layer gains. No board is needed: QEMU counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from mlc_rpc import Session
from mlc_targets import Target, qemu_cpu

from ..board.connect import connect
from ..driver.compile import compile
from ..driver.deploy import RUN_SECONDS
from ..driver.deployment import described_model, layers_of
from ..driver.linked import FileName
from ..frontend import from_onnx
from .net import Net
from .run import Sample

EMULATED = ("aarch64", "arm")


@dataclass(frozen=True)
class Costs:
    """Executed instructions of one run; by the name of the node that a kernel begins with."""

    by_node: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_node.values())

    def of_layers(self, net: Net, chosen: Collection[str] = ()) -> dict[str, int]:
        """By layer, with the conversions of what chosen layers read."""
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
    """Counts what nets cost on a target. Raises Unreachable where QEMU is missing."""

    def __init__(
        self, target: Target, sample: Sample, session: Session, link: Sequence[FileName] = ()
    ) -> None:
        self.target, self.sample, self.session, self.link = target, sample, session, link

    def __call__(self, net: Net) -> Costs:
        """Raises ImporterError, GraphError, and RpcError for a program that fails."""
        shapes = {name: array.shape for name, array in self.sample.items()}
        function = from_onnx(net.proto(), shapes, converters=net.converters)
        model = compile(function, self.target, link=self.link)
        module = self.session.load(model)
        try:
            described = described_model(model)
            tensors = [self.session.tensor(self.sample[p.name]) for p in described.inputs]
            sizes = [tuple(n for n in p.shape if isinstance(n, int)) for p in described.outputs]
            results = [
                self.session.empty(size, p.dtype)
                for size, p in zip(sizes, described.outputs, strict=True)
            ]
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
    """A meter on an emulated CPU of the target's; link as `compile` takes it. Raises Unreachable,
    TargetError."""
    session = connect(f"qemu://{qemu_cpu(target)}", machine=target.arch)
    return Meter(target, sample, session, link)


def counted(target: Target) -> bool:
    """Whether a target's instructions are counted: ARM's are."""
    return target.arch in EMULATED


def within_cost(
    net: Net, form: Callable[[Collection[str]], Net], measure: Callable[[Net], Costs],
    before: Costs,
    chosen: frozenset[str],
) -> tuple[frozenset[str], Costs]:  # fmt: skip
    """The layers of `chosen` for which integers cost less, and what the net then costs.

    form makes a net of the layers that are to be integers. Layers that cost more than they did
    become float, as long as the whole net costs less for it.
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
