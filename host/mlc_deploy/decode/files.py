"""The files beside a decoder's model: configuration, tokenizer and chat template, as the exporters
of transformers, optimum and onnxruntime-genai write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import DecodeError
from ..files.fields import Field, Malformed, NoJson, parsed
from ..files.limits import CONFIG_BYTES, TEMPLATE_BYTES, TOKENS, Limit
from ..files.outside import read_file

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
    """length: tokens that the model can read; 0: unknown. window: tokens of sliding-window
    attention, if all layers have the same. ends: tokens that end a text. template: the chat
    template. texts: the special tokens that it may write, by their roles."""

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
    genai = json_of(folders, "genai_config.json")
    generation = json_of(folders, "generation_config.json")
    chat = json_of(folders, "tokenizer_config.json")
    own = config.inner("text_config") if config.field["text_config"] else config
    lengths = [n for c in (own, genai.inner("model")) for key in LENGTHS if (n := c.tokens(key))]
    ends = [c.token_list(ENDS) for c in (generation, genai.inner("model"), config)]
    return Beside(
        tokenizer=_tokenizer(folders, tokenizer),
        length=min(lengths, default=0),
        window=_window(own),
        ends=frozenset(token for found in ends for token in found),
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
        ends=found.ends.union(token for given in ends for token in _numbers(given)),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """An object of JSON in a file. Its methods raise DecodeError, which names the file and the
    field, for values of another kind; a missing one is None, or empty."""

    field: Field
    where: str

    def inner(self, key: str) -> Config:
        """An object in it; empty if there is none."""
        found = self.field[key]
        if not found:
            return Config(Field({}), self.where)
        with self._reading():
            return Config(Field(dict(found.items()) and found.value, found.path), self.where)

    def tokens(self, key: str) -> int | None:
        """A number of tokens."""
        return self.whole(key, TOKENS)

    def whole(self, key: str, most: Limit) -> int | None:
        with self._reading():
            return self.field[key].maybe_whole(most.most)

    def text(self, key: str) -> str | None:
        with self._reading():
            return self.field[key].maybe_text()

    def flag(self, key: str) -> bool | None:
        with self._reading():
            return self.field[key].maybe_flag()

    def token_list(self, key: str) -> list[int]:
        """A token, or a list of tokens. Some files say -1 or lists of lists: those are none."""
        found = self.field[key].value
        return [n for n in _numbers(found) if 0 <= n <= TOKENS.most]

    def texts(self, key: str) -> list[str]:
        with self._reading():
            found = self.field[key]
            return [each.text() for each in found] if found else []

    def named_tokens(self, key: str) -> dict[str, int]:
        """Tokens by name."""
        with self._reading():
            found = self.field[key]
            return {k: v.whole(TOKENS.most) for k, v in found.items()} if found else {}

    def or_else(self, other: Config) -> Config:
        """With the entries of the other that are not null."""
        more = {key: value for key, value in other.field.value.items() if value is not None}
        return Config(Field({**self.field.value, **more}), self.where or other.where)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Malformed as error:
            mend = "the file as its exporter wrote it"
            raise DecodeError(str(error), where=self.where, mend=mend) from None


def json_of(folders: Sequence[Path], name: str) -> Config:
    """The first file of that name, which must hold an object; empty if there is none. Raises
    DecodeError."""
    for folder in folders:
        file = folder / name
        if file.is_file():
            try:
                found = parsed(read_file(file, CONFIG_BYTES.most))
            except (OSError, NoJson) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                raise DecodeError(f"this is not JSON: {why}", where=str(file)) from None
            if not isinstance(found.value, dict):
                raise DecodeError("this is not a JSON object", where=str(file))
            return Config(found, str(file))
    return Config(Field({}), "")


def _tokenizer(folders: Sequence[Path], asked: Path | None) -> Path | None:
    if asked is not None and not asked.is_dir():
        return asked
    found = [folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()]
    return found[0] if found else None


def _numbers(found: object) -> list[int]:
    every = found if isinstance(found, list) else [found]
    return [number for number in every if type(number) is int]


def _window(config: Config) -> int | None:
    """The window, if all layers have it."""
    window, kinds = config.tokens("sliding_window"), config.texts("layer_types")
    if not window or config.flag("use_sliding_window") is False:
        return None
    if not kinds:  # older files: in some families only later or alternate layers have a window
        kept = not config.tokens("max_window_layers") and not config.field["sliding_window_pattern"]
        kept = kept and config.text("model_type") in ("mistral", "mixtral", "starcoder2", "phi3")
        return window if kept else None
    return window if set(kinds) == {"sliding_attention"} else None


def _template(folders: Sequence[Path], chat: Config) -> str | None:
    for folder in folders:
        file = folder / "chat_template.jinja"
        if file.is_file():
            try:
                return read_file(file, TEMPLATE_BYTES.most).decode()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                what = f"the chat template cannot be read: {why}"
                raise DecodeError(what, where=str(file), mend="--no-chat") from None
    found: object = chat.field["chat_template"].value
    if isinstance(found, list):  # several, of which one is the usual
        named = [t for t in found if isinstance(t, dict) and t.get("name") == "default"]
        found = named[0].get("template") if named else None
    if isinstance(found, str) and len(found) > TEMPLATE_BYTES.most:
        raise DecodeError(
            f"the chat template has {len(found):,} characters, and at most "
            f"{TEMPLATE_BYTES.most:,} are read",
            where=chat.where,
            mend="--no-chat",
        )
    return found if isinstance(found, str) else None


def _texts(chat: Config) -> Iterator[tuple[str, str]]:
    """bos_token, eos_token and others: text, or an object that holds it."""
    for key, value in chat.field.value.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            yield key, text
