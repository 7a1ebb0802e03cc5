"""Converters of ai.onnx.ml, the domain of exported scikit-learn models; numbers only. Trees are in
onnx_trees.py."""

from __future__ import annotations

import math
import warnings
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from ..errors import ModelWarning
from ..graph.nodes import Value
from ..ir import is_const
from .layers.indices import gather
from .layers.products import scaled
from .layers.shapes import joined, reshape, rows, with_axis
from .node import shape_of
from .onnx_node import Converter, OnnxNode


def as_table(n: OnnxNode) -> tuple[Value, str]:
    """The input as rows of features, and their dtype, float32 or float64."""
    dtype = n.dtype() if n.dtype() in ("float32", "float64") else "float32"
    x = n.cast(n.input(0), dtype)
    return (reshape(n, x, (1, *shape_of(x))) if len(shape_of(x)) == 1 else x), dtype


def labels(n: OnnxNode, name: str) -> list[int]:
    """The classes. Raises ImporterError if they are text."""
    found: list[int] = n.attr(name, [])
    if not found:
        raise n.refuse("labels that are text are not supported", "a model whose labels are numbers")
    return found


def transformed(n: OnnxNode, y: Value, how: str) -> Value:
    """Scores [N, C] after the attribute post_transform."""
    match how:
        case "NONE":
            return y
        case "LOGISTIC":
            return n.emit("sigmoid", y)
        case "SOFTMAX":
            return n.emit("softmax", y, axis=1)
        case "SOFTMAX_ZERO":  # what is 0 stays 0
            zero = n.constant(0, y.type.dtype)
            most = n.emit("max", y, axes=[1], keepdims=True)
            powers = n.emit("exp", n.emit("subtract", y, most))
            kept = n.emit("where", n.emit("equal", y, zero), zero, powers)
            return n.emit("divide", kept, n.emit("sum", kept, axes=[1], keepdims=True))
    raise n.refuse(f"post_transform '{how}' is not supported")


def class_scores(
    n: OnnxNode, y: Value, names: list[int], post: str, positive: bool = False
) -> list[Value]:
    """The class of each row, and all scores. A single score for two classes is the second one's.
    The second class is chosen above 0, or above 0.5 if scores are positive. The first one's score
    is then the negative, or the difference to 1."""
    dtype = y.type.dtype
    if shape_of(y)[1] > 1:
        scores = transformed(n, y, post)
        chosen = n.emit("argmax", y, axis=1, keepdims=False, last=False)
    else:
        half = n.constant(0.5 if positive else 0, dtype)
        chosen = reshape(n, n.cast(n.emit("greater", y, half), "int64"), shape_of(y)[:1])
        whole = n.constant(1 if positive and post == "NONE" else 0, dtype)
        scores = n.emit("concatenate", n.emit("subtract", whole, y), y, axis=1)
        scores = transformed(n, scores, post)
        names = names if len(names) > 1 else [0, *names]
    return [n.emit("gather", n.constant(names, "int64"), chosen, axis=0), n.cast(scores, "float32")]


# ----------------------------------------------------------------------------------- linear models


def _linear(n: OnnxNode, count: int) -> Value:
    """x [N, F] times coefficients [count, F], plus intercepts."""
    x, dtype = as_table(n)
    weights = np.reshape(n.attr("coefficients"), (count, shape_of(x)[1]))
    y = n.emit("dense", x, n.constant(weights, dtype), transpose_b=True)
    shift = n.attr("intercepts", [])
    return n.emit("add", y, n.constant(shift, dtype)) if shift else y


def _linear_regressor(n: OnnxNode) -> Any:
    y = _linear(n, n.attr("targets", 1))
    return n.cast(transformed(n, y, n.attr("post_transform", "NONE")), "float32")


def _linear_classifier(n: OnnxNode) -> Any:
    names = labels(n, "classlabels_ints")
    count = len(n.attr("coefficients")) // n.shape()[-1]
    return class_scores(n, _linear(n, count), names, n.attr("post_transform", "NONE"))


def _kernel(n: OnnxNode, x: Value, vectors: Any) -> Value:
    """A support vector machine's kernel of rows [N, F] and vectors [S, F]: [N, S]."""
    dtype = x.type.dtype
    gamma, offset, degree = (*n.attr("kernel_params", []), 0.0, 0.0, 0.0)[:3]
    kind = n.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        apart = n.emit("subtract", with_axis(n, x, 1), n.constant(vectors, dtype))
        squares = n.emit("sum", n.emit("multiply", apart, apart), axes=[2], keepdims=False)
        return n.emit("exp", scaled(n, squares, -gamma))
    y = n.emit("dense", x, n.constant(vectors, dtype), transpose_b=True)
    if kind == "LINEAR":
        return y
    y = n.emit("add", scaled(n, y, gamma), n.constant(offset, dtype))
    if kind == "SIGMOID":
        return n.emit("tanh", y)
    return n.emit("power", y, n.constant(degree, dtype))


def _svm_regressor(n: OnnxNode) -> Any:
    x, dtype = as_table(n)
    weights, count = n.attr("coefficients"), n.attr("n_supports", 0)
    if count:
        x = _kernel(n, x, np.reshape(n.attr("support_vectors"), (count, -1)))
    y = n.emit("dense", x, n.constant([weights], dtype), transpose_b=True)
    y = n.emit("add", y, n.constant(n.attr("rho"), dtype))
    if n.attr("one_class", 0):
        above = n.emit("greater", y, n.constant(0, dtype))
        y = n.emit("where", above, n.constant(1, dtype), n.constant(-1, dtype))
    return n.cast(transformed(n, y, n.attr("post_transform", "NONE")), "float32")


def _svm_classifier(n: OnnxNode) -> Any:
    """Each pair of classes has a score; the class that wins most pairs is chosen."""
    names, (x, dtype) = labels(n, "classlabels_ints"), as_table(n)
    owned = n.attr("vectors_per_class", [])
    if not owned or n.attr("prob_a", []):
        what = "without support vectors" if not owned else "with probabilities (prob_a)"
        raise n.refuse(f"a support vector machine {what} is not supported")
    vectors, classes = sum(owned), len(owned)
    first = np.cumsum([0, *owned])
    given = np.reshape(n.attr("coefficients"), (classes - 1, vectors))
    pairs = [*combinations(range(classes), 2)]
    weights, votes = np.zeros((len(pairs), vectors)), np.zeros((2, len(pairs), classes))
    for k, (i, j) in enumerate(pairs):
        own, other = slice(first[i], first[i + 1]), slice(first[j], first[j + 1])
        weights[k, own], weights[k, other] = given[j - 1, own], given[i, other]
        votes[0, k, i] = votes[1, k, j] = 1
    y = _kernel(n, x, np.reshape(n.attr("support_vectors"), (vectors, -1)))
    y = n.emit("dense", y, n.constant(weights, dtype), transpose_b=True)
    y = n.emit("add", y, n.constant(n.attr("rho"), dtype))
    won = n.cast(n.emit("greater", y, n.constant(0, dtype)), dtype)
    # A pair won counts for its first class, a pair lost for its second.
    count = n.emit("dense", won, n.constant(votes[0] - votes[1], dtype), transpose_b=False)
    count = n.emit("add", count, n.constant(votes[1].sum(0), dtype))
    chosen = n.emit("argmax", count, axis=1, keepdims=False, last=False)
    label = n.emit("gather", n.constant(names, "int64"), chosen, axis=0)
    if len(pairs) == 1:
        y = n.emit("concatenate", n.emit("negative", y), y, axis=1)
    return [label, n.cast(transformed(n, y, n.attr("post_transform", "NONE")), "float32")]


# ---------------------------------------------------------------------------------- preprocessing


def _array_feature_extractor(n: OnnxNode) -> Any:
    x = n.input(0)
    index = reshape(n, n.input(1), (math.prod(n.shape(1)),))
    y = gather(n, x, index, len(shape_of(x)) - 1, from_end=False)
    return reshape(n, y, (1, *shape_of(y))) if len(shape_of(y)) == 1 else y


def _binarizer(n: OnnxNode) -> Any:
    x = n.input(0)
    return n.cast(n.emit("greater", x, n.constant(n.attr("threshold", 0.0), n.dtype())), n.dtype())


def _feature_vectorizer(n: OnnxNode) -> Any:
    every = n.every()
    parts = [
        reshape(n, n.cast(x, "float32"), (shape_of(x)[0], math.prod(shape_of(x)[1:])))
        for x in every
    ]
    return n.emit("concatenate", *parts, axis=1)


def _imputer(n: OnnxNode) -> Any:
    """Replaces missing numbers, or NaN, by the column's value or by one value for all."""
    x, dtype = n.input(0), n.dtype()
    what = "int64s" if dtype.startswith("int") else "floats"
    values = n.attr(f"imputed_value_{what}")
    absent = n.attr(f"replaced_value_{what[:-1]}", 0)
    same = (
        n.emit("isnan", x) if math.isnan(absent) else n.emit("equal", x, n.constant(absent, dtype))
    )
    return n.emit("where", same, n.constant(values, dtype), x)


def _label_encoder(n: OnnxNode) -> Any:
    """Maps numbers to numbers by a table; other numbers become a default value."""
    found: dict[str, Any] = {}
    for what in ("keys", "values"):
        for name in (f"{what}_{kind}" for kind in ("tensor", "int64s", "floats")):
            if (own := n.attr(name, None)) is not None:
                found[what] = np.asarray(own)
    if len(found) < 2:
        raise n.refuse("text is not supported", "keys and values that are numbers")
    keys, values = found["keys"], found["values"]
    dtype = (
        str(values.dtype)
        if n.attr("values_tensor", None) is not None
        else ("int64" if values.dtype.kind == "i" else "float32")
    )
    plain = n.attr("default_int64", -1) if dtype == "int64" else n.attr("default_float", -0.0)
    default = np.reshape(n.attr("default_tensor", plain), (1,))
    order = np.argsort(keys, kind="stable")
    x, keys = n.input(0), keys[order]
    place = n.emit("find", x, n.constant(keys, x.type.dtype))
    if keys.dtype.kind == "f" and np.isnan(keys[-1]):  # the largest in this order
        last = n.constant(len(keys) - 1, "int64")
        place = n.emit("where", n.emit("isnan", x), last, place)
    table = np.concatenate([values.astype(dtype)[order], default.astype(dtype)])
    return n.emit("gather", n.constant(table, dtype), place, axis=0)


def _normalizer(n: OnnxNode) -> Any:
    x, dtype = as_table(n)
    how = n.attr("norm", "MAX")
    op = {"MAX": "max", "L1": "sum", "L2": "sum"}[how]
    size = n.emit("multiply", x, x) if how == "L2" else n.emit("abs", x)
    size = n.emit(op, size, axes=[1], keepdims=True)
    size = n.emit("sqrt", size) if how == "L2" else size
    zero, one = n.constant(0, dtype), n.constant(1, dtype)
    size = n.emit("where", n.emit("equal", size, zero), one, size)
    return n.cast(reshape(n, n.emit("divide", x, size), n.shape()), "float32")


def _one_hot_encoder(n: OnnxNode) -> Any:
    """Gives zeros for a number that is not a category, also with zeros=0, which promises that there
    is none."""
    names = labels(n, "cats_int64s")
    x = n.cast(n.input(0), "int64")
    same = n.emit("equal", with_axis(n, x, len(n.shape())), n.constant(names, "int64"))
    return n.cast(same, "float32")


def _scaler(n: OnnxNode) -> Any:
    x = n.cast(n.input(0), "float32")
    offset, scale = (
        n.constant(n.attr(name, default), "float32")
        for name, default in (("offset", [0.0]), ("scale", [1.0]))
    )
    return n.emit("multiply", n.emit("subtract", x, offset), scale)


def _columns_of(n: OnnxNode, x: Value, grams: Any, columns: Any, step: int, none: int) -> Value:
    """The columns of the sequences [G, size] found in rows [N, C], at each place where they may
    begin, with `step` between their members; `none` where there are none.

    Members are numbered, then pairs of the number of a sequence's beginning and its next member.
    """
    size = grams.shape[1]
    places = shape_of(x)[1] - step * (size - 1)
    members, numbers = np.unique(grams, return_inverse=True)
    numbers, other = numbers.reshape(grams.shape), len(members) + 1
    member = n.emit("find", x, n.constant(members, "int64"))
    found, known = rows(n, member, 0, places, 1), numbers[:, 0]
    for k in range(1, size):
        keys, known_next = np.unique(known * other + numbers[:, k], return_inverse=True)
        found = n.emit("multiply", found, n.constant(other, "int64"))
        found = n.emit("add", found, rows(n, member, step * k, places, 1))
        found, known = n.emit("find", found, n.constant(keys, "int64")), known_next
    by_number = np.full(known.max() + 2, none)
    by_number[known] = columns
    return n.emit("gather", n.constant(by_number, "int64"), found, axis=0)


def _tf_idf(n: OnnxNode) -> Any:
    """Counts sequences of numbers in rows [N, C] or in one row [C], also with equal gaps between
    their members."""
    if n.attr("pool_strings", []):
        raise n.refuse("text is not supported", "a vocabulary of numbers (pool_int64s)")
    pool, begins = n.attr("pool_int64s"), n.attr("ngram_counts")
    x = n.cast(n.input(0), "int64")
    x = x if len(shape_of(x)) == 2 else reshape(n, x, (1, *shape_of(x)))
    count, length = shape_of(x)
    shortest, longest = n.attr("min_gram_length"), n.attr("max_gram_length")
    steps = min(n.attr("max_skip_count") + 1, length)
    columns, found, seen = n.attr("ngram_indexes"), list[Value](), 0
    width = max(columns) + 1
    for size, (begin, end) in enumerate(pairwise([*begins, len(pool)]), 1):
        grams = np.reshape(pool[begin:end], (-1, size))
        own = np.array(columns[seen : seen + len(grams)])
        seen += len(grams)
        if not len(grams) or not shortest <= size <= longest:
            continue
        found += [
            _columns_of(n, x, grams, own, step, width)
            for step in range(1, 1 + (steps if size > 1 else 1))
            if length > step * (size - 1)
        ]
    y: Value = n.constant(np.zeros((count, width)), "float32")
    if found:
        places = joined(n, found, 1)
        ones = n.constant(np.ones(shape_of(places)), "float32")
        y = n.emit("scatter_elements", y, places, ones, axis=1, reduction="add")
    if n.attr("mode") == "IDF":
        y = n.cast(n.emit("greater", y, n.constant(0, "float32")), "float32")
    if n.attr("mode") != "TF" and (weights := n.attr("weights", [])):
        by_column = np.zeros(width)
        by_column[columns] = weights
        y = n.emit("multiply", y, n.constant(by_column, "float32"))
    return reshape(n, y, (*n.shape()[:-1], width))


def _zip_map(n: OnnxNode) -> Any:
    """A map of each row's classes to their scores as the row of scores."""
    classes = n.attr("classlabels_strings", None) or n.attr("classlabels_int64s")
    (_, columns) = shape_of(n.input(0))
    if not is_const(columns, len(classes)):
        raise ValueError(f"{columns} columns for {len(classes)} classes")
    shown = ", ".join(map(str, classes[:8])) + (", …" if len(classes) > 8 else "")
    what = f"{n.place}: the maps are a tensor with a column for each class: {shown}"
    warnings.warn(what, ModelWarning, stacklevel=2)
    return n.input(0)


LEARNT: dict[str, Converter] = {
    f"ai.onnx.ml::{name}": convert
    for name, convert in {
        "ArrayFeatureExtractor": _array_feature_extractor, "Binarizer": _binarizer,
        "FeatureVectorizer": _feature_vectorizer, "Imputer": _imputer,
        "LabelEncoder": _label_encoder, "LinearClassifier": _linear_classifier,
        "LinearRegressor": _linear_regressor, "Normalizer": _normalizer,
        "OneHotEncoder": _one_hot_encoder, "SVMClassifier": _svm_classifier,
        "SVMRegressor": _svm_regressor, "Scaler": _scaler, "ZipMap": _zip_map,
    }.items()
}  # fmt: skip
LEARNT["TfIdfVectorizer"] = _tf_idf
