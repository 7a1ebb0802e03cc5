"""Forests of decision trees (ai.onnx.ml), walked on the board. One loop, with as many iterations as
the deepest tree has levels, goes from root to leaf in all trees of all rows at once.

Every node asks x <= value or x == value. Other comparisons become one of these: opposite ones with
the answers swapped, x < value as x <= the next smaller number, a set as a chain of equalities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.nodes import Value
from .layers.loops import loop
from .layers.shapes import expand
from .node import limited, shape_of
from .onnx_ml import as_table, class_scores, labels, transformed
from .onnx_node import Converter, OnnxNode

LEAF = "LEAF"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")  # the numbers of TreeEnsemble's modes
OPPOSITE = {"GT": "LEQ", "GTE": "LT", "NEQ": "EQ"}


@dataclass(slots=True)
class Forest:
    """Nodes by number. yes and no are the next nodes (of a leaf: itself); `leaf` is the number
    among leaves, or -1. missing: NaN goes to yes."""

    feature: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    leaf: list[int] = field(default_factory=list)
    leaves: int = 0

    def add_leaf(self) -> int:
        return self._add(0, 0.0, False, False, leaf=True)

    def add(self, feature: int, value: float, mode: str, missing: bool, dtype: str) -> int:
        """Adds a node; `join` sets the nodes that follow. Raises ValueError for an unknown mode."""
        mode = OPPOSITE.get(mode, mode)
        if mode not in ("LEQ", "LT", "EQ"):
            raise ValueError(f"a node of mode '{mode}'")
        number = np.dtype(dtype).type(value)
        if mode == "LT":
            number = np.nextafter(number, np.dtype(dtype).type(-np.inf))
        return self._add(feature, float(number), mode == "EQ", missing, leaf=False)

    def _add(self, feature: int, value: float, equal: bool, missing: bool, leaf: bool) -> int:
        number = len(self.feature)
        self.feature.append(feature)
        self.value.append(value)
        self.equal.append(equal)
        self.missing.append(missing)
        self.yes.append(number)
        self.no.append(number)
        self.leaf.append(self.leaves if leaf else -1)
        self.leaves += leaf
        return number

    def join(self, number: int, mode: str, yes: int, no: int) -> None:
        """Sets the nodes that follow a yes and a no to the question of this mode."""
        swapped = mode in OPPOSITE
        self.yes[number], self.no[number] = (no, yes) if swapped else (yes, no)
        self.missing[number] ^= swapped

    def depth(self, roots: Sequence[int]) -> int:
        """The number of questions on the way to the deepest leaf. Raises ValueError for a cycle."""
        below: dict[int, int] = {}
        stack, begun = [*roots], set[int]()
        while stack:
            node = stack[-1]
            following = [] if self.leaf[node] >= 0 else [self.yes[node], self.no[node]]
            left = [k for k in following if k not in below]
            if not left:
                below[node] = 1 + max((below[k] for k in following), default=-1)
                stack.pop()
            elif node in begun:
                raise ValueError("the nodes of a tree form a circle")
            else:
                begun.add(node)
                stack += left
        return max((below[root] for root in roots), default=0)


def walked(n: OnnxNode, x: Value, forest: Forest, roots: Sequence[int]) -> Value:
    """The number (among leaves) of the leaf that each row of x [N, F] reaches in each tree: [N,
    trees]."""
    rows, features = shape_of(x)
    if any(not 0 <= feature < features for feature in forest.feature):
        raise ValueError(f"a node asks for a feature that the {features} of the input have not")

    def table(values: Sequence[Any], dtype: str) -> Any:
        constant = n.constant(values, dtype)
        return lambda places: n.emit("gather", constant, places, axis=0)

    feature, value = table(forest.feature, "int32"), table(forest.value, x.type.dtype)
    yes, no = table(forest.yes, "int32"), table(forest.no, "int32")
    equal, missing = table(forest.equal, "bool"), table(forest.missing, "bool")

    def step(_: Value, own: list[Value], __: list[Value]) -> Any:
        (place,) = own
        asked = n.emit("gather_elements", x, feature(place), axis=1)
        answer = n.emit("less_equal", asked, value(place))
        if any(forest.equal):
            same = n.emit("equal", asked, value(place))
            answer = n.emit("where", equal(place), same, answer)
        if any(forest.missing):
            absent = n.emit("logical_and", n.emit("isnan", asked), missing(place))
            answer = n.emit("logical_or", answer, absent)
        return [n.emit("where", answer, yes(place), no(place))], []

    limited(rows * len(roots), "a table of trees")
    place = expand(n, n.constant([roots], "int32"), (rows, len(roots)))
    turns = forest.depth(roots)
    if turns:
        (place,), _ = loop(n, turns, [place], step)
    return n.emit("gather", n.constant(forest.leaf, "int32"), place, axis=0)


def aggregated(n: OnnxNode, leaves: Value, weights: NDArray[Any], how: str) -> Value:
    """The weights of leaves [N, trees] aggregated to [N, targets]. weights [leaves, targets]."""
    ops = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}
    dtype = str(weights.dtype)
    each = n.emit("gather", n.constant(weights, dtype), leaves, axis=0)
    return n.emit(ops[how], each, axes=[1], keepdims=False)


def _table(
    leaves: Sequence[int], targets: Sequence[int], weights: Sequence[float], shape: tuple[int, int],
    how: str, dtype: str,
) -> NDArray[Any]:  # fmt: skip
    """The weights by leaf and target; the neutral element where a leaf has none."""
    limited(shape[0] * shape[1], "a table of weights")
    none = {"MIN": np.finfo(dtype).max, "MAX": np.finfo(dtype).min}.get(how, 0)
    found = np.full(shape, none, dtype)
    places, values = (np.array(leaves, int), np.array(targets, int)), np.array(weights, dtype)
    if how in ("MIN", "MAX"):
        found[places] = values
    else:
        np.add.at(found, places, values)
    return found


# -------------------------------------------------------------------------------- from attributes


def _lists(n: OnnxNode, *names: str) -> Mapping[str, list[Any]]:
    """Attributes that are lists, or tensors under the same name with `_as_tensor`."""
    found = {}
    for name in names:
        value = n.attr(f"{name}_as_tensor", None)
        found[name] = n.attr(name, []) if value is None else list(value)
    return found


def _classic(n: OnnxNode, dtype: str) -> tuple[Forest, list[int], Mapping[tuple[int, int], int]]:
    """The forest of TreeEnsembleRegressor and -Classifier, its roots, and its nodes by (tree id,
    node id)."""
    names = "treeids nodeids modes featureids values truenodeids falsenodeids".split()
    named = _lists(n, *(f"nodes_{name}" for name in names))
    rows = list(zip(*(named[f"nodes_{name}"] for name in names), strict=True))
    missing = n.attr("nodes_missing_value_tracks_true", None) or [0] * len(rows)
    forest, roots = Forest(), dict[int, int]()
    numbers: dict[tuple[int, int], int] = {}
    for (tree, node, mode, feature, value, *_), absent in zip(rows, missing, strict=True):
        mode = mode.removeprefix("BRANCH_")
        number = (
            forest.add_leaf()
            if mode == LEAF
            else forest.add(feature, value, mode, bool(absent), dtype)
        )
        numbers[tree, node] = number
        roots.setdefault(tree, number)
    for tree, node, mode, _, _, yes, no in rows:
        if mode != LEAF:
            own = mode.removeprefix("BRANCH_")
            forest.join(numbers[tree, node], own, numbers[tree, yes], numbers[tree, no])
    return forest, list(roots.values()), numbers


def _weights(n: OnnxNode, what: str) -> tuple[list[tuple[int, int]], list[int], list[float]]:
    """Tree and node, target, and weight of each entry."""
    named = _lists(n, *(f"{what}_{key}" for key in ("treeids", "nodeids", "ids", "weights")))
    trees, nodes, targets, weights = named.values()
    return list(zip(trees, nodes, strict=True)), targets, weights


def _regressor(n: OnnxNode) -> Any:
    x, dtype = as_table(n)
    forest, roots, numbers = _classic(n, dtype)
    places, targets, weights = _weights(n, "target")
    how, count = n.attr("aggregate_function", "SUM"), n.attr("n_targets", 1)
    own = [forest.leaf[numbers[place]] for place in places]
    table = _table(own, targets, weights, (forest.leaves, count), how, dtype)
    y = aggregated(n, walked(n, x, forest, roots), table, how)
    if base := _lists(n, "base_values")["base_values"]:
        y = n.emit("add", y, n.constant(base, dtype))
    return n.cast(transformed(n, y, n.attr("post_transform", "NONE")), "float32")


def _classifier(n: OnnxNode) -> Any:
    """If all weights belong to one of two classes, its score decides: above 0.5 if all weights are
    positive, else above 0."""
    x, dtype = as_table(n)
    names = labels(n, "classlabels_int64s")
    forest, roots, numbers = _classic(n, dtype)
    places, targets, weights = _weights(n, "class")
    single = len(names) <= 2 and len(set(targets)) == 1
    own = [forest.leaf[numbers[place]] for place in places]
    ids = [0] * len(targets) if single else targets
    shape = (forest.leaves, 1 if single else len(names))
    table = _table(own, ids, weights, shape, "SUM", dtype)
    y = aggregated(n, walked(n, x, forest, roots), table, "SUM")
    base = _lists(n, "base_values")["base_values"]
    if base:
        y = n.emit("add", y, n.constant(base[-1:] if single else base, dtype))
    positive = single and all(weight >= 0 for weight in weights)
    return class_scores(n, y, names, n.attr("post_transform", "NONE"), positive)


def _ensemble(n: OnnxNode) -> Any:
    """TreeEnsemble numbers leaves and nodes separately; NaN ends the members of a set."""
    x, dtype = as_table(n)
    names = "splits featureids modes truenodeids falsenodeids trueleafs falseleafs".split()
    splits, features, modes, *following = (list(n.attr(f"nodes_{name}")) for name in names)
    missing = n.attr("nodes_missing_value_tracks_true", None) or [0] * len(splits)
    members = iter(n.attr("membership_values", np.zeros(0)))
    forest = Forest()
    targets, weights = n.attr("leaf_targetids"), n.attr("leaf_weights")
    leaves = [forest.add_leaf() for _ in targets]
    chains: list[list[int]] = []
    for split, feature, mode, absent in zip(splits, features, modes, missing, strict=True):
        own = MODES[mode]
        values = [split]
        if own == "MEMBER":
            own = "EQ"
            values = [*takewhile(lambda member: not np.isnan(member), members)]
        chains.append([forest.add(feature, v, own, bool(absent), dtype) for v in values])
    for chain, mode, yes, no, yes_leaf, no_leaf in zip(chains, modes, *following, strict=True):
        ends = [
            leaves[number] if leaf else chains[number][0]
            for number, leaf in ((yes, yes_leaf), (no, no_leaf))
        ]
        for number, after in zip(chain, [*chain[1:], ends[1]], strict=True):
            forest.join(number, MODES[mode], ends[0], after)
    how = ("AVERAGE", "SUM", "MIN", "MAX")[n.attr("aggregate_function", 1)]
    shape = len(leaves), n.attr("n_targets")
    table = _table(range(len(leaves)), targets, weights, shape, how, dtype)
    roots = [chains[root][0] for root in n.attr("tree_roots")]
    y = aggregated(n, walked(n, x, forest, roots), table, how)
    posts = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    return n.cast(transformed(n, y, posts[n.attr("post_transform", 0)]), n.dtype())


TREES: dict[str, Converter] = {
    "ai.onnx.ml::TreeEnsemble": _ensemble, "ai.onnx.ml::TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml::TreeEnsembleRegressor": _regressor,
}  # fmt: skip
