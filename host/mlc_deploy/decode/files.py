"""The files beside a decoder's model: configuration, tokenizer and chat template, as the exporters
of transformers, optimum and onnxruntime-genai write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import DecodeError

MODELS = (
    "model.onnx", "onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx",
    "decoder_with_past_model.onnx", "onnx/decoder_with_past_model.onnx",
)  # fmt: skip
PROGRAM = ".pt2"
TOKENIZER = "tokenizer.json"
LENGTHS = ("max_position_embeddings", "n_positions", "context_length")
ENDS = "eos_token_id"


@dataclass(frozen=True, slots=True)
class Beside:
    """length: tokens that the model can read; 0: unknown. window: how many tokens a token looks
    back at, if all layers agree. ends: tokens that end a text. template: the chat template. texts:
    the special tokens that it may write, by their roles."""

    tokenizer: Path | None = None
    length: int = 0
    window: int | None = None
    ends: frozenset[int] = frozenset()
    template: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def model_of(path: Path) -> Path:
    """The model's file; in a folder, the file that exporters write. Raises DecodeError."""
    if not path.is_dir():
        return path
    found = [path / name for name in MODELS if (path / name).is_file()]
    found = found or sorted(path.glob("*.onnx")) or sorted(path.glob(f"*{PROGRAM}"))
    if not found:
        raise DecodeError(f"the folder holds no .onnx file and no {PROGRAM} file", where=str(path))
    return found[0]


def beside(model: Path, tokenizer: Path | None = None) -> Beside:
    """Reads the files in a model's folder and in the one around it, since optimum has a subfolder
    `onnx`; first those of the tokenizer's folder, if given. Raises DecodeError for damaged files.
    """
    folders = [model.parent, model.resolve().parent.parent]
    if tokenizer is not None:
        folders.insert(0, tokenizer if tokenizer.is_dir() else tokenizer.parent)
    config = json_of(folders, "config.json")
    genai = json_of(folders, "genai_config.json").get("model", {})
    generation = json_of(folders, "generation_config.json")
    chat = json_of(folders, "tokenizer_config.json")
    own = config.get("text_config", config)
    lengths = [c[key] for c in (own, genai) for key in LENGTHS if isinstance(c.get(key), int)]
    ends = [c.get(ENDS) for c in (generation, genai, config)]
    return Beside(
        tokenizer=_tokenizer(folders, tokenizer),
        length=min(lengths, default=0),
        window=_window(own),
        ends=frozenset(token for found in ends for token in _tokens(found)),
        template=_template(folders, chat),
        texts=dict(_texts(chat)),
    )


def of_module(module: object, tokenizer: Path | None = None) -> Beside:
    """The same for a language model of transformers in Python; the files beside a tokenizer say the
    rest."""
    found = beside(tokenizer, tokenizer) if tokenizer is not None else Beside()
    config = getattr(module, "config", None)
    lengths = [n for key in LENGTHS if type(n := getattr(config, key, None)) is int]
    ends = [getattr(getattr(module, "generation_config", None), ENDS, None)]
    return replace(
        found,
        length=min(lengths, default=found.length),
        ends=found.ends.union(token for given in ends for token in _tokens(given)),
    )


def json_of(folders: list[Path], name: str) -> Mapping[str, Any]:
    """The first file of that name, as JSON; empty if there is none. Raises DecodeError."""
    for folder in folders:
        file = folder / name
        if file.is_file():
            try:
                found = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise DecodeError(f"this is no JSON: {error}", where=str(file)) from None
            if not isinstance(found, dict):
                raise DecodeError("this is no JSON object", where=str(file))
            return found
    return {}


def _tokenizer(folders: list[Path], asked: Path | None) -> Path | None:
    if asked is not None and not asked.is_dir():
        return asked
    found = [folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()]
    return found[0] if found else None


def _tokens(found: object) -> list[int]:
    every = found if isinstance(found, list) else [found]
    return [token for token in every if type(token) is int]


def _window(config: Mapping[str, Any]) -> int | None:
    """The window, if all layers have it."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if type(window) is not int or config.get("use_sliding_window") is False:
        return None
    if kinds is None:  # older files: in some families only later or alternate layers have a window
        kept = config.get("max_window_layers", 0) == 0 and "sliding_window_pattern" not in config
        kept = kept and config.get("model_type") in ("mistral", "mixtral", "starcoder2", "phi3")
        return window if kept else None
    return window if set(kinds) == {"sliding_attention"} else None


def _template(folders: list[Path], chat: Mapping[str, Any]) -> str | None:
    for folder in folders:
        file = folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    match chat.get("chat_template"):
        case str(text):
            return text
        case [*named]:
            known = {t.get("name"): t.get("template") for t in named if isinstance(t, dict)}
            found = known.get("default")
            return found if isinstance(found, str) else None
    return None


def _texts(chat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """bos_token, eos_token and others: text, or an object that holds it."""
    for key, value in chat.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            yield key, text
