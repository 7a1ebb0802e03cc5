"""`generate`: a decoder continues a prompt, piece by piece.

with mlc.connect("ssh://pi@raspberrypi.local") as board:
    for piece in mlc.generate("model.onnx", "Once upon a time", board):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from mlc_targets import Target

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..board.connect import target_of
from ..driver.compile import CompiledModel, compile
from ..driver.deploy import RUN_SECONDS, thread_count
from ..errors import DecodeError
from ..graph.precision import HALF, known_precision
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
TOKENS = 128  # of a reply, at most, by default
HOST, BOARD = LOOPS = ("host", "board")  # the place where tokens are chosen


@dataclass(frozen=True, slots=True)
class Summary:
    """The costs of a reply. Seconds are by the board's clock; only `first_s`, from the prompt to
    the first token, is by this machine's. instructions: per token; None if the board does not
    count. ended: "end" (the model's own), "stop", "limit", or "full" (the cache)."""

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
        """Tokens of the prompt per second."""
        return self.prompt / self.prefill_s if self.prefill_s else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second, without the first one, which reading the prompt gives."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else None

    def record(self) -> dict[str, Any]:
        rates = {
            "prefill_tokens_per_s": self.prefill_rate, "decode_tokens_per_s": self.decode_rate,
        }  # fmt: skip
        return asdict(self) | rates


class Reply(Generic[Piece]):
    """A reply as it is written: pieces of text, or tokens if the prompt was tokens. `tokens` are
    those so far; `summary` is valid at the end."""

    def __init__(
        self, text: Text, prompt: Sequence[int], most: int, sampling: Sampling,
        ends: frozenset[int], tokenizer: Tokenizer | None, stops: Sequence[str],
        loop: str = HOST,
    ) -> None:  # fmt: skip
        self.tokens: list[int] = []
        self.text = ""
        self._on_board, self._prompt = text, prompt
        self._most, self._sampling, self._ends = most, sampling, ends
        self._tokenizer, self._stops = tokenizer, stops
        self._loop = loop
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
        text = self._on_board
        written = text.write if self._loop == BOARD else text.reply
        for token in written(self._prompt, self._most, self._sampling, self._ends):
            self.tokens.append(token)
            yield token
        full = self._on_board.room == 0
        limit = len(self.tokens) == self._most
        self._ended = "limit" if limit else "full" if full else "end"

    @property
    def summary(self) -> Summary:
        steps = self._on_board.steps[self._steps :]
        first, later = _parted(steps, len(self._prompt))
        counts = [(s.instructions, s.tokens) for s in later if s.instructions is not None]
        per_token = sum(n for n, _ in counts) / sum(n for _, n in counts) if counts else None
        return Summary(
            prompt=len(self._prompt),
            tokens=len(self.tokens),
            prefill_s=sum(step.board_s for step in first),
            decode_s=sum(step.board_s for step in later),
            first_s=sum(step.host_s for step in first),
            memory=self._on_board.memory,
            instructions=None if per_token is None else round(per_token),
            ended=self._ended,
        )


def _parted(steps: Sequence[Step], prompt: int) -> tuple[Sequence[Step], Sequence[Step]]:
    """The first steps, which read `prompt` tokens, and the others."""
    left = prompt
    for number, step in enumerate(steps):
        if left <= 0:
            return steps[:number], steps[number:]
        left -= step.tokens
    return steps, ()


@dataclass(frozen=True)
class Decoder:
    """A compiled decoder, and the files beside its own."""

    model: CompiledModel | SavedModel
    file: Path
    beside: Beside

    def fitting(self, machine: str, features: frozenset[str]) -> Decoder:
        """The decoder with a saved model's best program for such a board."""
        if isinstance(self.model, SavedModel):
            return replace(self, model=self.model.fitting(machine, features))
        return self

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises DecodeError if it or the extra is missing."""
        return load_tokenizer(self.beside, self.file)

    def prompt(
        self, tokenizer: Tokenizer, prompt: str, *, chat: bool | None = None, system: str = ""
    ) -> list[int]:
        """The tokens of a prompt. If the tokenizer has a chat template and chat is not False, the
        prompt is a message of a chat."""
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
    cache: str = "",
    tokenizer: str | Path | None = None,
    loop: str = HOST,
    **options: Any,
) -> Decoder:
    """Compiles a decoder for a target, or loads a saved one.

    model: an .onnx or .pt2 file, a folder with one, an .mlc file, a program of torch.export, or a
    module of PyTorch, such as a language model of transformers. length: tokens that the cache has
    room for; by default 512, or the model's own length if that is less. window: tokens of
    sliding-window attention; by default its configuration's. cache: the dtype of keys and values,
    by default the model's own; "float16" takes half the memory, "int8" a quarter, with a scale for
    each row; both round. loop: "board" also compiles the loop that chooses tokens there. Decoders
    of PyTorch take no window, cache or loop. options: those of `compile`. Raises DecodeError and
    what `compile` and `load_model` raise."""
    _known_loop(loop)
    near = None if tokenizer is None else Path(tokenizer)
    ours = {"window": window, "cache": cache, "loop": "" if loop == HOST else loop}
    of_torch = partial(_of_torch, target=target, length=length, options=options, ours=ours)
    if not isinstance(model, (str, Path)):
        return of_torch(model, Path(type(model).__name__), of_module(model, near))
    file = model_of(Path(model))
    found = beside(file, near)
    if is_saved(file):
        return Decoder(load_model(file), file, found)
    if file.suffix == PROGRAM:
        return of_torch(file, file, found)
    rows = length or min(LENGTH, found.length or LENGTH)
    if window is None:
        rows, window = _windowed(rows, found.window, fixed=length is not None)
    converters = options.pop("converters", None)
    to = Target(target) if target is not None else (Target.current() or Target("host"))
    function = read_decoder(
        file, rows, window, cache=cache, loop=loop == BOARD, converters=converters
    )
    if cache == HALF:
        known_precision(cache, to)
    made = compile(function, to, **options)
    return Decoder(made, file, found)


def _of_torch(
    program: Path | ExportedProgram | Module, file: Path, found: Beside, *,
    target: Target | str | None, length: int | None, options: dict[str, Any],
    ours: Mapping[str, object],
) -> Decoder:  # fmt: skip
    """A decoder of PyTorch with its own cache. ours: options that need this package's cache."""
    for name, value in ours.items():
        if value:
            raise DecodeError(
                f"a decoder of PyTorch has a cache of its own, which takes no {name}",
                where=f"{file}, {name}={value}",
                mend=f"no {name}; or a model of ONNX",
            )
    if length is None and is_module(program) and found.length:
        length = min(LENGTH, found.length)
    function = read_program_decoder(program, length, converters=options.pop("converters", None))
    return Decoder(compile(function, target, **options), file, found)


def _windowed(rows: int, window: int | None, fixed: bool) -> tuple[int, int | None]:
    """The rows of a cache, and the window; no window if texts that fit into the cache never need
    it. fixed: the user chose the rows."""
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
    loop: str | None = None,
    **loading: Any,
) -> Reply[Any]:
    """A decoder continues a prompt on a board. Iterates over pieces of text, or over tokens if the
    prompt is tokens.

    model: a Decoder, or what load_decoder takes, with its options in `loading`. tokens: the most to
    write. temperature: 0 takes the most likely token; otherwise `seed` samples one of the `top_k`
    most likely ones and, of these, of the fewest that together are as likely as `top_p`. stop:
    texts that end the reply. chat: False ignores the tokenizer's chat template. system: the first
    message of a chat. loop: "host" sends every token back before the next one is computed; "board"
    runs the whole loop there, and its tokens come together; by default the loop that the model was
    compiled with, and "host" for one that is compiled here. The board's tensors are freed with the
    session. Raises DecodeError, RpcError, and what load_decoder raises."""
    if not isinstance(model, Decoder):
        target = target or target_of(board.device)
        model = load_decoder(model, target, loop=loop or HOST, **loading)
    elif loop is not None:
        _known_loop(loop)
    tokenizer = model.tokenizer() if isinstance(prompt, str) else None
    if isinstance(prompt, str):
        assert tokenizer is not None
        ids = model.prompt(tokenizer, prompt, chat=chat, system=system)
    else:
        ids = list(prompt)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    text = Text(board.load(model.model), threads=threads, cores=cores, timeout=timeout)
    sampling = Sampling(temperature, top_k, top_p, seed)
    loop = loop or (BOARD if text.loops else HOST)
    return Reply(text, ids, tokens, sampling, model.ends(tokenizer), tokenizer, stop, loop)


def _known_loop(loop: str) -> None:
    if loop not in LOOPS:
        raise DecodeError(
            "there is no such place for the loop", where=f"loop={loop!r}", mend="'host' or 'board'"
        )
