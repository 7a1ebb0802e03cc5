"""`transcribe`: a speech model writes down a sound, piece by piece.

with mlc.connect("ssh://pi@raspberrypi.local") as board:
    for piece in mlc.transcribe("models/whisper-tiny", "speech.wav", board):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlc_targets import Target

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..board.connect import target_of
from ..driver.compile import CompiledModel, compile
from ..driver.deploy import RUN_SECONDS, thread_count
from .audio import Waves
from .files import Beside, beside
from .speech_files import Speech, speech_of, speech_of_module
from .speech_model import ENCODER, read_speech
from .speech_module import has_weights, module_of, read_speech_module
from .text import Memory, Text
from .tokens import Tokenizer, load_tokenizer
from .wav import read_wav

if TYPE_CHECKING:
    from torch.nn import Module

    from mlc_rpc import Session

Array = NDArray[Any]


@dataclass(frozen=True)
class Transcriber:
    """A compiled speech model, the files beside it, and what it hears and says."""

    model: CompiledModel | SavedModel
    file: Path
    beside: Beside
    speech: Speech

    def fitting(self, machine: str, features: frozenset[str]) -> Transcriber:
        """The transcriber with a saved model's best program for such a board."""
        if isinstance(self.model, SavedModel):
            return replace(self, model=self.model.fitting(machine, features))
        return self

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None without its file. Raises DecodeError if the extra is missing."""
        return None if self.beside.tokenizer is None else load_tokenizer(self.beside, self.file)


Source: TypeAlias = "str | Path | Transcriber | Module"


def load_transcriber(
    model: str | Path | Module,
    target: Target | str | None = None,
    *,
    length: int | None = None,
    seconds: float | None = None,
    tokenizer: str | Path | None = None,
    **options: Any,
) -> Transcriber:
    """Compiles a speech model for a target, or loads a saved one.

    model: a folder that optimum or transformers wrote, an .mlc file, or transformers'
    WhisperForConditionalGeneration or MoonshineForConditionalGeneration. length: the most tokens of
    a part of sound, by default as many as the model can write. seconds: the longest part of sound,
    for a model in which it is dynamic; by default, a part as long as the longest text. options:
    those of `compile`. Raises DecodeError and what `compile` and `load_model` raise."""
    near = None if tokenizer is None else Path(tokenizer)
    if not isinstance(model, (str, Path)):
        found = beside(near, near) if near is not None else Beside()
        file, own = Path(type(model).__name__), speech_of_module(model, seconds)
        function = read_speech_module(model, own.ear, length or own.length, own.silent)
        return Transcriber(compile(function, target, **options), file, found, own)
    file = Path(model)
    folder = file if file.is_dir() else file.parent
    found, own = beside(folder / "model", near), speech_of(folder, seconds)
    if file.is_file() and is_saved(file):
        saved = load_model(file)
        return Transcriber(saved, file, found, _as_saved(own, saved))
    parts = folder / "onnx" if (folder / "onnx").is_dir() else folder
    most = length or own.length
    if has_weights(folder) and not (parts / ENCODER).is_file():
        made = read_speech_module(module_of(folder), own.ear, most, own.silent)
        made = replace(made, name=folder.name or made.name)
    else:
        made = read_speech(parts, own.ear, most, own.silent)
    return Transcriber(compile(made, target, **options), folder, found, own)


def _as_saved(speech: Speech, saved: SavedModel) -> Speech:
    """`speech` with parts as long as a saved model's input, if its type has a dynamic one."""
    model, ear = saved.metadata.model, speech.ear
    if not isinstance(ear, Waves) or model is None or ear.input not in model.arguments:
        return speech
    samples = int(model.arguments[ear.input].shape[-1])
    return replace(speech, ear=replace(ear, samples=samples))


@dataclass(frozen=True, slots=True)
class Heard:
    """The costs of a transcript. sound_s: the length of the sound. By the board's clock: hear_s,
    of the first steps, which run the encoder, and decode_s, of the later ones."""

    sound_s: float
    tokens: int
    hear_s: float
    decode_s: float
    memory: Memory
    instructions: int | None

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Transcript:
    """A transcript as it is written: pieces of text, or tokens if there is no tokenizer beside the
    model. `tokens` and `text` are those so far; `summary` is valid at the end."""

    def __init__(
        self, loaded: Any, speech: Speech, sound: Array, start: Sequence[int], detect: bool,
        most: int | None, tokenizer: Tokenizer | None, how: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.tokens: list[int] = []
        self.text = ""
        self.language: str | None = None
        self._loaded, self._speech, self._sound = loaded, speech, sound
        self._start, self._detect, self._most = list(start), detect, most
        self._tokenizer, self._how = tokenizer, how
        self._hear_s, self._decode_s = 0.0, 0.0
        self._counts: list[int] = []
        self._memory = Memory(0, 0, 0)
        self._pieces = self._written()

    def __iter__(self) -> Iterator[str | int]:
        return self

    def __next__(self) -> str | int:
        return next(self._pieces)

    def _written(self) -> Iterator[str | int]:
        for part in self._speech.ear.parts(self._sound):
            tokens = self._tokens(part)
            if self._tokenizer is None:
                yield from tokens
                continue
            for piece in self._tokenizer.texts(t for t in tokens if not self._speech.marks(t)):
                self.text += piece
                yield piece

    def _tokens(self, part: Array) -> Iterator[int]:
        """The tokens of one part of sound."""
        ear = self._speech.ear
        with Text(self._loaded, given={ear.input: ear.features(part)}, **self._how) as text:
            self._memory = text.memory
            if self._detect:
                text.read(self._start[:1])
                self.language, token = self._speech.likeliest(text.logits())
                self._start[1:1], self._detect = [token], False
                text.read(self._start[1:])
            else:
                text.read(self._start)
            first = self._speech.first(text.logits())
            for token in text.follow(first, self._most, self._speech.ends):
                self.tokens.append(token)
                yield token
            self._hear_s += text.steps[0].board_s
            self._decode_s += sum(step.board_s for step in text.steps[1:])
            self._counts += [s.instructions for s in text.steps[1:] if s.instructions is not None]

    @property
    def summary(self) -> Heard:
        counts = self._counts
        return Heard(
            sound_s=len(self._sound) / self._speech.ear.rate,
            tokens=len(self.tokens),
            hear_s=self._hear_s,
            decode_s=self._decode_s,
            memory=self._memory,
            instructions=round(sum(counts) / len(counts)) if counts else None,
        )


def transcribe(
    model: Source,
    audio: str | Path | Array,
    board: Session,
    *,
    language: str | None = None,
    task: str = "transcribe",
    tokens: int | None = None,
    threads: int | None = None,
    cores: str = "",
    timeout: float = RUN_SECONDS,
    target: Target | str | None = None,
    **loading: Any,
) -> Transcript:
    """Transcribes a sound on a board, by the most likely tokens. Iterates over pieces of text, or
    over tokens if there is no tokenizer beside the model.

    model: a Transcriber, or what load_transcriber takes, with its options in `loading`. audio: a
    .wav file of 16-bit PCM, or numbers from -1 to 1, with the model's rate. Audio longer
    than a chunk (about 30 s) is cut into chunks, each transcribed alone. language: such as
    "en", for a model of several (default: the most likely). task: "translate" writes English.
    tokens: the most per part. Raises DecodeError, RpcError, and what load_transcriber raises."""
    if not isinstance(model, Transcriber):
        model = load_transcriber(model, target or target_of(board.device), **loading)
    speech = model.speech
    start, detect = speech.start(language, task)
    sound = audio if isinstance(audio, np.ndarray) else read_wav(audio, speech.ear.rate)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    how = {"threads": threads, "cores": cores, "timeout": timeout}
    return Transcript(
        board.load(model.model), speech, sound, start, detect, tokens, model.tokenizer(), how
    )
