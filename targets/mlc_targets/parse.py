"""Reads target strings, dicts and JSON into attributes; resolve.py gives them meaning.

llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon -device=arm_cpu     one or two dashes
raspberry-pi/4b-aarch64 -num-cores=2                                  a name and changes to it
{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod"]}
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Literal

from .errors import TargetError, suggest

KINDS = ("llvm", "c")
FAST_MATH = ("nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")  # LLVM's flags

Type = Literal["text", "list", "int", "flag", "target"]
Value = object  # str, tuple[str, ...], int or bool, by the attribute's Type; "host" takes any

ATTRIBUTES: dict[str, Type] = {
    "keys": "list",
    "device": "text",
    "model": "text",
    "tag": "text",
    "mtriple": "text",
    "mcpu": "text",
    "mattr": "list",
    "mfloat-abi": "text",
    "mabi": "text",
    "num-cores": "int",
    "opt-level": "int",
    "fast-math": "flag",
    **{f"fast-math-{flag}": "flag" for flag in FAST_MATH},
    "host": "target",
}

# TVM's attributes that would have no effect here: the reason, and what to use instead.
_WITHOUT_EFFECT = {
    "libs": ("no vendor's library is called", "leave it out"),
    "runtime": ("there is one runtime, which is sent to the board", "leave it out"),
    "executor": ("there is one executor, which is part of the runtime", "leave it out"),
    "system-lib": ("nothing is linked into a program by itself", "--emit obj, for a C program"),
    "link-params": ("weights are a file of their own", "model.export(folder, embed_weights=True)"),
}

_SPELLINGS = {"target": "mtriple"}  # what TVM called it before v0.8
_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def read(spec: str | Mapping[str, object]) -> tuple[str, dict[str, Value]]:
    """The first word of `spec` (a kind, a board, or a short name) and its attributes."""
    if not isinstance(spec, str):
        return _from_mapping(spec)
    text = spec.strip()
    if text.startswith("{"):
        return _from_mapping(_json(text))
    return _from_text(text)


def _from_text(text: str) -> tuple[str, dict[str, Value]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(f"{str(error).lower()} in the target", "close the quotes") from None
    if not words:
        raise TargetError("the target is empty", "armv7a, aarch64, x86_64 or host")
    if words[0].startswith("-"):
        raise TargetError(
            f"the target begins with the option '{words[0]}', not with a kind", f"llvm {text}"
        )
    attributes: dict[str, Value] = {}
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise TargetError(
                f"'{word}' is not an option", f"-{word}" if "=" in word else "-name=value"
            )
        key, equals, value = word.lstrip("-").partition("=")
        name = _known(key)
        if not equals:
            if ATTRIBUTES[name] == "flag" and (not rest or rest[0].lower() not in _FLAGS):
                value = "1"
            elif rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            else:
                raise TargetError(f"-{name} has no value", f"-{name}=VALUE")
        _put(attributes, name, _from_words(name, value))
    return words[0], attributes


def _from_words(name: str, value: str) -> Value:
    match ATTRIBUTES[name]:
        case "list":
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case "int":
            try:
                return int(value)
            except ValueError:
                raise _wrong_type(name, value) from None
        case "flag":
            if value.lower() not in _FLAGS:
                raise _wrong_type(name, value)
            return _FLAGS[value.lower()]
        case _:
            return value


def _json(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TargetError(
            f"this begins like JSON, but is not: {error}", '{"kind": "llvm", "mtriple": "..."}'
        ) from None
    assert isinstance(found, dict)  # the text begins with a brace
    return found


def _from_mapping(spec: Mapping[str, object]) -> tuple[str, dict[str, Value]]:
    attributes: dict[str, Value] = {}
    first = spec.get("kind", spec.get("tag"))
    if first is None:
        raise TargetError("neither 'kind' nor 'tag' is given", '"kind": "llvm"')
    if not isinstance(first, str):
        raise TargetError(f"kind is {first!r}, not a string", '"kind": "llvm"')
    for key, value in spec.items():
        if not isinstance(key, str):
            raise TargetError(f"the attribute {key!r} is not a string", "mtriple")
        if key == "kind" or ("kind" not in spec and key == "tag"):
            continue
        name = _known(key)
        _put(attributes, name, _checked(name, value))
    return first, attributes


def _checked(name: str, value: object) -> Value:
    match ATTRIBUTES[name], value:
        case "list", str():
            return _from_words(name, value)
        case "list", list() | tuple() if all(isinstance(part, str) for part in value):
            return tuple(value)
        case "int", int() if not isinstance(value, bool):
            return value
        case "flag", bool() | 0 | 1:
            return bool(value)
        case "text", str():
            return value
        case "target", _:
            return value
    raise _wrong_type(name, value)


def _known(key: str) -> str:
    name = key.replace("_", "-").lower()
    name = _SPELLINGS.get(name, name)
    if name in _WITHOUT_EFFECT:
        reason, instead = _WITHOUT_EFFECT[name]
        raise TargetError(f"-{name} has no effect: {reason}", instead)
    if name not in ATTRIBUTES:
        near = suggest(name, ATTRIBUTES)
        raise TargetError(f"unknown attribute '{key}'", near or ", ".join(ATTRIBUTES))
    return name


def _put(attributes: dict[str, Value], name: str, value: Value) -> None:
    if name in attributes and attributes[name] != value:
        raise TargetError(
            f"{name} is given twice, as {attributes[name]!r} and as {value!r}", "give it once"
        )
    attributes[name] = value


def _wrong_type(name: str, value: object) -> TargetError:
    wanted, example = {
        "text": ("a string", '"..."'),
        "list": ("a list of strings", '["+neon"]' if name == "mattr" else '["..."]'),
        "int": ("a whole number", f"{name}=4" if name == "num-cores" else f"{name}=3"),
        "flag": ("a yes or no", f"{name}=1 or {name}=0"),
        "target": ("a target", "llvm"),
    }[ATTRIBUTES[name]]
    return TargetError(f"{name} is {value!r}, not {wanted}", example)
