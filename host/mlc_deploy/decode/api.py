"""`generate`: what a decoder writes behind a prompt, piece by piece.

with mlc.connect("ssh://pi@raspberrypi.local") as board:
    for piece in mlc.generate("model.onnx", "Once upon a time", board):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from mlc_targets import Target

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..board.connect import target_of
from ..driver.compile import CompiledModel, compile
from ..driver.deploy import RUN_SECONDS, thread_count
from ..errors import DecodeError
from .files import PROGRAM, Beside, beside, model_of, of_module
from .model import LENGTH, STEP, read_decoder
from .program import is_module, read_program_decoder
from .sampling import Sampling
from .text import Memory, Step, Text
from .tokens import Tokenizer, chat_text, load_tokenizer, until

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

    from mlc_rpc import Session

Piece = TypeVar("Piece", str, int)
Source: TypeAlias = "str | Path | Decoder | ExportedProgram | Module"
TOKENS = 128  # that a reply has at most, unless told


@dataclass(frozen=True, slots=True)
class Summary:
    """What a reply cost. Seconds are on the board's clock, but for `first_s`: from the prompt to
    the first token, as this machine saw it. `instructions` are those of a token, where the board
    counts. ended: "end" (the model's own), "stop", "limit", or "full" (the cache)."""

    prompt: int
    tokens: int
    prefill_s: float
    decode_s: float
    first_s: float
    memory: Memory
    instructions: int | None
    ended: str

    @property
    def prefill_rate(self) -> float | None:
        """Tokens of the prompt in a second."""
        return self.prompt / self.prefill_s if self.prefill_s else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens in a second behind the first one, which the prompt gives."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else None

    def record(self) -> dict[str, Any]:
        rates = {
            "prefill_tokens_per_s": self.prefill_rate, "decode_tokens_per_s": self.decode_rate,
        }  # fmt: skip
        return asdict(self) | rates


class Reply(Generic[Piece]):
    """A reply as it is written: pieces of text, or tokens where the prompt was tokens. `tokens` are
    those so far; `summary` is there at the end."""

    def __init__(
        self, text: Text, prompt: Sequence[int], most: int, sampling: Sampling,
        ends: frozenset[int], tokenizer: Tokenizer | None, stops: Sequence[str],
    ) -> None:  # fmt: skip
        self.tokens: list[int] = []
        self.text = ""
        self._on_board, self._prompt = text, prompt
        self._most, self._sampling, self._ends = most, sampling, ends
        self._tokenizer, self._stops = tokenizer, stops
        self._steps = len(text.steps)
        self._pieces = self._written()
        self._ended = ""

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece: Piece = next(self._pieces)  # type: ignore[assignment]
        return piece

    def _written(self) -> Iterator[str | int]:
        if self._tokenizer is None:
            yield from self._drawn()
        else:
            for piece in until(self._tokenizer.texts(self._drawn()), self._stops):
                self.text += piece
                yield piece
        self._ended = self._ended or "stop"

    def _drawn(self) -> Iterator[int]:
        reply = self._on_board.reply(self._prompt, self._most, self._sampling, self._ends)
        for token in reply:
            self.tokens.append(token)
            yield token
        full = self._on_board.room == 0
        limit = len(self.tokens) == self._most
        self._ended = "limit" if limit else "full" if full else "end"

    @property
    def summary(self) -> Summary:
        steps = self._on_board.steps[self._steps :]
        first, later = _parted(steps, len(self._prompt))
        counts = [step.instructions for step in later if step.instructions is not None]
        return Summary(
            prompt=len(self._prompt),
            tokens=len(self.tokens),
            prefill_s=sum(step.board_s for step in first),
            decode_s=sum(step.board_s for step in later),
            first_s=sum(step.host_s for step in first),
            memory=self._on_board.memory,
            instructions=round(sum(counts) / len(counts)) if counts else None,
            ended=self._ended,
        )


def _parted(steps: Sequence[Step], prompt: int) -> tuple[Sequence[Step], Sequence[Step]]:
    """The steps that read so many tokens, and the others."""
    left = prompt
    for number, step in enumerate(steps):
        if left <= 0:
            return steps[:number], steps[number:]
        left -= step.tokens
    return steps, ()


@dataclass(frozen=True)
class Decoder:
    """A compiled decoder, and what lies beside its file."""

    model: CompiledModel | SavedModel
    file: Path
    beside: Beside

    def fitting(self, machine: str, features: frozenset[str]) -> Decoder:
        """With the program that is best on such a board, of a saved model with several."""
        if isinstance(self.model, SavedModel):
            return replace(self, model=self.model.fitting(machine, features))
        return self

    def tokenizer(self) -> Tokenizer:
        """Raises DecodeError where it or the extra is missing."""
        return load_tokenizer(self.beside, self.file)

    def prompt(
        self, tokenizer: Tokenizer, prompt: str, *, chat: bool | None = None, system: str = ""
    ) -> list[int]:
        """The tokens of a prompt: as a message of a chat, where the tokenizer has a template and
        chat is not False, and else as it is."""
        if chat is False or self.beside.template is None:
            return tokenizer.tokens(prompt)
        messages = [{"role": "system", "content": system}] if system else []
        text = chat_text(self.beside, [*messages, {"role": "user", "content": prompt}])
        return tokenizer.tokens(text, special=False)

    def ends(self, tokenizer: Tokenizer | None) -> frozenset[int]:
        """The tokens that end a text."""
        named = self.beside.texts.get("eos_token")
        found = tokenizer.token(named) if tokenizer is not None and named else None
        return self.beside.ends | ({found} if found is not None else frozenset())


def load_decoder(
    model: str | Path | ExportedProgram | Module,
    target: Target | str | None = None,
    *,
    length: int | None = None,
    window: int | None = None,
    tokenizer: str | Path | None = None,
    **options: Any,
) -> Decoder:
    """A decoder compiled for a target, or saved before. model: an .onnx or .pt2 file, a folder with
    one, or an .mlc file; or a program of torch.export, or a module of PyTorch, such as a language
    model of transformers. length: tokens that the cache has room for; by default 512, or the
    model's own length where that is less. window: tokens that the model looks back at; by default
    what its configuration says. options as `compile` takes them. Raises DecodeError and what
    `compile` and `load_model` raise."""
    near = None if tokenizer is None else Path(tokenizer)
    if not isinstance(model, (str, Path)):
        return _of_torch(model, Path(type(model).__name__), of_module(model, near), target, length,
                         window, options)  # fmt: skip
    file = model_of(Path(model))
    found = beside(file, near)
    if is_saved(file):
        return Decoder(load_model(file), file, found)
    if file.suffix == PROGRAM:
        return _of_torch(file, file, found, target, length, window, options)
    rows = length or min(LENGTH, found.length or LENGTH)
    if window is None:
        rows, window = _windowed(rows, found.window, fixed=length is not None)
    converters = options.pop("converters", None)
    function = read_decoder(file, rows, window, converters=converters)
    made = compile(function, target, **options)
    return Decoder(made, file, found)


def _of_torch(
    program: Path | ExportedProgram | Module, file: Path, found: Beside,
    target: Target | str | None, length: int | None, window: int | None, options: dict[str, Any],
) -> Decoder:  # fmt: skip
    """A decoder of PyTorch. Its cache keeps every row: a mask of its own makes a window."""
    if window is not None:
        raise DecodeError(
            "a decoder of PyTorch has no cache whose rows move",
            where=f"{file}, window={window}",
            mend="no window; or a model of ONNX",
        )
    if length is None and is_module(program) and found.length:
        length = min(LENGTH, found.length)
    function = read_program_decoder(program, length, converters=options.pop("converters", None))
    return Decoder(compile(function, target, **options), file, found)


def _windowed(rows: int, window: int | None, fixed: bool) -> tuple[int, int | None]:
    """The rows of a cache, and the window that they serve: none where a text that fits into the
    cache never needs it. fixed: the rows are as they were asked for."""
    if window is None or (window > LENGTH and not fixed):
        return rows, None
    needed = window - 1 + STEP
    if not fixed:
        return max(rows, needed), window
    return rows, window if rows >= needed else None


@overload
def generate(model: Source, prompt: str, board: Session, **options: Any) -> Reply[str]: ...
@overload
def generate(
    model: Source, prompt: Sequence[int], board: Session, **options: Any
) -> Reply[int]: ...
def generate(
    model: Source,
    prompt: str | Sequence[int],
    board: Session,
    *,
    tokens: int = TOKENS,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] = (),
    chat: bool | None = None,
    system: str = "",
    threads: int | None = None,
    cores: str = "",
    timeout: float = RUN_SECONDS,
    target: Target | str | None = None,
    **loading: Any,
) -> Reply[Any]:
    """What a decoder writes behind a prompt, on a board: an iterator of pieces of text or, of a
    prompt of tokens, of tokens.

    tokens: at most so many. temperature 0 takes the likeliest token; otherwise `seed` draws one of
    the `top_k` likeliest, and of those that are together as likely as `top_p`. stop: texts that end
    the reply. chat: False takes the prompt as it is, though the tokenizer has a chat template;
    system is the first message of a chat. model: as load_decoder takes it, with its options in
    `loading`, or what it gave. The board's tensors are freed with the session.
    Raises DecodeError, RpcError, and what load_decoder raises.
    """
    if not isinstance(model, Decoder):
        model = load_decoder(model, target or target_of(board.device), **loading)
    tokenizer = model.tokenizer() if isinstance(prompt, str) else None
    if isinstance(prompt, str):
        assert tokenizer is not None
        ids = model.prompt(tokenizer, prompt, chat=chat, system=system)
    else:
        ids = list(prompt)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    text = Text(board.load(model.model), threads=threads, cores=cores, timeout=timeout)
    sampling = Sampling(temperature, top_k, top_p, seed)
    return Reply(text, ids, tokens, sampling, model.ends(tokenizer), tokenizer, stop)
