"""The record of a run: read from JSON (driver/deployment.py writes it) and checked. It has one form
for a board, an emulator, and a compilation without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ReportError
from ..files.fields import NESTED, Field, Malformed, NoJson, parsed

VERSION = 1  # of the record's form, its "record"
MEND = "mlc-deploy MODEL --board B --json FILE"
GIVEN = -1  # a tensor's `begin` if it exists before the first call


@dataclass(frozen=True, slots=True)
class Layer:
    """A call of the model and its costs, as far as known."""

    name: str
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    median_us: float | None
    instructions: int | None
    by_class: Mapping[str, int] | None
    turns: int
    predicted_ms: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """The details of a layer; `reads` and `writes` are numbers of tensors."""

    operators: tuple[str, ...]
    implementation: str | None
    multiply_accumulates: int | None
    traffic_bytes: int
    weights_bytes: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`bytes` from `offset` of a space, from the call `begin` to the call `end`."""

    name: str
    space: str
    offset: int
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Details:
    """The part of the record that a report adds. `least_bytes`: a lower bound of any plan's arena.
    `kernels`: (loops, assembly) by name."""

    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...]
    arena_bytes: int
    least_bytes: int | None
    kernels: Mapping[str, tuple[str, str]]
    loops: bool


@dataclass(frozen=True, slots=True)
class Latency:
    """Samples in milliseconds, and the conditions meanwhile: (before, after) of every `each`
    samples, by the fact's name; None where the board did not say."""

    verdict: str
    samples: tuple[float, ...]
    number: tuple[int, ...]
    outliers: frozenset[int]
    median_ms: float
    percentiles: Mapping[str, float]
    mad_ms: float
    first_ms: float | None
    findings: tuple[tuple[str, str], ...]
    cluster: str
    cores: tuple[int, ...]
    per_run: Mapping[str, float]
    each: int
    conditions: Mapping[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]]


@dataclass(frozen=True, slots=True)
class Output:
    """`ok` is None if there was nothing to compare with."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs_err: float | None
    max_rel_err: float | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted milliseconds of the whole model, the interval around them, and milliseconds by
    number of threads. board, date: the user's board and when it was calibrated; empty for a
    prediction for a kind of board."""

    ms: float
    low: float
    high: float
    threads: Mapping[str, float]
    board: str
    date: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The peaks of the cores, as far as known; `source` names the cores."""

    macs_per_instruction: float | None
    macs_per_s: float | None
    bytes_per_s: float | None
    source: str
    by_dtype: Mapping[str, float]  # MACs per second


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the host, in seconds since the command began."""

    name: str
    begin_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """One thread's part of a layer, or a whole layer, in microseconds since the run began."""

    layer: int
    thread: int
    begin_us: float
    us: float


@dataclass(frozen=True, slots=True)
class Run:
    """A record. `facts` are plain texts for the board's and the compiler's parts of the page."""

    model: str
    target: str
    precision: str
    level: str
    url: str | None
    board: Mapping[str, str]
    emulated: bool
    outputs: tuple[Output, ...]
    reference: str | None
    ok: bool | None
    accuracy: float | None
    compile_s: float | None
    upload_s: float | None
    upload_bytes: int | None
    object_bytes: int
    weights_bytes: int
    arena_bytes: int
    memory: Mapping[str, float]
    energy: Mapping[str, float]
    threads: int | None
    latency: Latency | None
    instructions: int | None
    layers: tuple[Layer, ...]
    interruptions: tuple[str, ...]
    prediction: Prediction | None
    limits: Limits | None
    steps: tuple[Step, ...]
    spans: tuple[Span, ...]
    details: Details | None

    @property
    def timed(self) -> bool:
        """Whether its times are a board's."""
        return self.latency is not None and not self.emulated

    @property
    def counted(self) -> bool:
        return self.instructions is not None


def read_run(text: str | bytes, where: str) -> Run:
    """The run of a record's JSON. Raises ReportError, with `where`, for anything else."""
    try:
        found = parsed(text).value
    except NoJson as caught:
        if (error := caught.error) is None:
            nested = str(caught) == NESTED
            what = "this is not a results file of mlc-deploy" if nested else "this is not JSON"
            raise ReportError(what, where=where, mend=MEND) from None
        begun = error.doc.strip()
        cut = begun.startswith("{") and not begun.endswith("}")
        what = "the JSON is incomplete" if cut else f"this is not JSON: {error.msg.lower()}"
        if not begun:
            what = "the file is empty"
        place = f"{where}:{error.lineno}:{error.colno}"
        mend = f"write it again: {MEND}" if cut else MEND
        raise ReportError(what, where=place, mend=mend) from None
    return parse_run(found, where)


def parse_run(found: Any, where: str) -> Run:
    """The run of a record. Raises ReportError, with `where`, for anything else."""
    if not isinstance(found, dict) or not {"model", "target", "layers"} <= found.keys():
        raise ReportError("this is not a results file of mlc-deploy", where=where, mend=MEND)
    version = found.get("record", VERSION)
    if version != VERSION:
        raise ReportError(
            f"the results have format version {version!r:.20}; this mlc-deploy reads "
            f"version {VERSION}",
            where=where,
            mend="the mlc-deploy that wrote it, or write it again",
        )
    try:
        return _run(Field(found))
    except Malformed as error:
        raise ReportError(f"the results are damaged: {error}", where=where, mend=MEND) from None


def _run(of: Field) -> Run:
    board, accuracy, layers = of["board"], of["predictions"], len(list(of["layers"]))
    return Run(
        model=of["model"].text(),
        target=of["target"].text(),
        precision=of["precision"].maybe_text() or "float32",
        level=of["level"].maybe_text() or "base",
        url=board["url"].text() if board else None,
        board=_board(board) if board else {},
        emulated=bool(board and board["emulated"].maybe_flag()),
        outputs=tuple(map(_output, of["outputs"])) if of["outputs"] else (),
        reference=of["reference"].maybe_text(),
        ok=of["ok"].maybe_flag(),
        accuracy=accuracy["accuracy"].amount() if accuracy else None,
        compile_s=of["compile_s"].maybe_amount(),
        upload_s=of["upload_s"].maybe_amount(),
        upload_bytes=of["upload_bytes"].maybe_count(),
        object_bytes=of["object_bytes"].count(),
        weights_bytes=of["weights_bytes"].count(),
        arena_bytes=of["arena_bytes"].count(),
        memory=_amounts(of["memory"]),
        energy=_amounts(of["energy"]),
        threads=of["threads"].maybe_count(),
        latency=_latency(of["latency"]) if of["latency"] else None,
        instructions=of["instructions"].maybe_count(),
        layers=tuple(map(_layer, of["layers"])),
        interruptions=tuple(_interruption(i) for i in of["interruptions"] or ()),
        prediction=_prediction(of["predicted"]) if of["predicted"] else None,
        limits=_limits(of["limits"]) if of["limits"] else None,
        steps=tuple(map(_step, of["steps"])) if of["steps"] else (),
        spans=tuple(_span(s, layers) for s in of["spans"] or ()),
        details=_details(of["details"], layers) if of["details"] else None,
    )


def _board(of: Field) -> dict[str, str]:
    """The rows of a table."""
    rows = {
        "board": of["url"].text(),
        "CPU": of["cpu_model"].maybe_text() or "unknown",
        "machine": of["machine"].maybe_text() or "",
        "cores": str(of["cores"].maybe_count() or ""),
        "memory": size(of["memory_bytes"].count()) if of["memory_bytes"] else "",
        "kernel": of["kernel"].maybe_text() or "",
        "features": " ".join(f.text() for f in of["features"] or ()),
        "kept from kernels": ", ".join(f.text() for f in of["box"] or ()),
    }
    return {label: text for label, text in rows.items() if text}


def _output(of: Field) -> Output:
    return Output(
        of["name"].text(),
        _shape(of["shape"]),
        of["dtype"].text(),
        of["max_abs_err"].maybe_amount(),
        of["max_rel_err"].maybe_amount(),
        of["ok"].maybe_flag(),
    )


def _shape(of: Field) -> tuple[int, ...]:
    return tuple(n.count() for n in of)


def _amounts(of: Field) -> dict[str, float]:
    """The known amounts of an object."""
    return {key: value.amount() for key, value in of.items() if value} if of else {}


def _executed(of_class: Field) -> int:
    """Instructions of a class. The cost of marks is subtracted, and their kernel may have one
    branch more than the layer's, so a negative number is 0."""
    value = of_class.number()
    if value != int(value):
        raise of_class.wrong("a whole number")
    return max(int(value), 0)


def _layer(of: Field) -> Layer:
    classes = of["by_class"]
    return Layer(
        of["name"].text(),
        of["kernel"].text(),
        _shape(of["shape"]),
        of["dtype"].text(),
        of["median_us"].maybe_amount(),
        of["instructions"].maybe_count(),
        {name: _executed(of_class) for name, of_class in classes.items()} if classes else None,
        of["turns"].maybe_count() or 1,
        of["predicted_ms"].maybe_amount(),
    )


def _latency(of: Field) -> Latency:
    samples = tuple(s.amount() for s in of["samples"])
    conditions: dict[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {}
    if of["conditions"]:
        before, after = of["conditions"]["before"], of["conditions"]["after"]
        for fact, rows in after.items():
            sides = before[fact], rows
            columns = [tuple(v.number() if v else None for v in side) for side in sides]
            conditions[fact] = columns[0], columns[1]
    percentiles = {p: of[f"{p}_ms"] for p in ("p50", "p90", "p95", "p99")}
    return Latency(
        verdict=of["verdict"].text(),
        samples=samples,
        number=tuple(n.count() for n in of["number"] or ()) or (1,) * len(samples),
        outliers=frozenset(n.count() for n in of["outliers"] or ()),
        median_ms=of["median_ms"].amount(),
        percentiles={p: value.amount() for p, value in percentiles.items() if value},
        mad_ms=of["mad_ms"].amount(),
        first_ms=of["first_ms"].maybe_amount(),
        findings=tuple((f["what"].text(), f["mend"].text()) for f in of["findings"] or ()),
        cluster=of["cluster"].maybe_text() or "",
        cores=tuple(c.count() for c in of["cores"] or ()),
        per_run=_amounts(of["per_run"]),
        each=max(of["each"].maybe_count() or 1, 1),
        conditions=conditions,
    )


def _interruption(of: Field) -> str:
    return f"{of['what'].text()}; back after {of['seconds'].amount():.3g} s"


def _prediction(of: Field) -> Prediction:
    by_threads, own = of["threads"], of["calibrated"]
    return Prediction(
        of["ms"].amount(),
        of["low"].amount(),
        of["high"].amount(),
        {n: ms.amount() for n, ms in by_threads.items() if ms} if by_threads else {},
        own["board"].text() if own else "",
        own["date"].text() if own else "",
    )


def _limits(of: Field) -> Limits:
    return Limits(
        of["macs_per_instruction"].maybe_amount(),
        of["macs_per_s"].maybe_amount(),
        of["bytes_per_s"].maybe_amount(),
        of["source"].maybe_text() or "",
        {dtype: rate.amount() for dtype, rate in of["by_dtype"].items()} if of["by_dtype"] else {},
    )


def _step(of: Field) -> Step:
    return Step(of["name"].text(), of["begin_s"].amount(), of["seconds"].amount())


def _span(of: Field, layers: int) -> Span:
    number = _below(of["layer"], layers)
    return Span(number, of["thread"].count(), of["begin_us"].amount(), of["us"].amount())


def _details(of: Field, layers: int) -> Details:
    tensors = tuple(map(_tensor, of["tensors"]))
    calls = tuple(_call(c, len(tensors)) for c in of["calls"])
    if len(calls) != layers:
        raise Malformed(f"details.calls has {len(calls)} elements for {layers} layers")
    kernels = of["kernels"]
    return Details(
        calls,
        tensors,
        of["arena"]["bytes"].count(),
        of["arena"]["least_bytes"].maybe_count(),
        {n: (k["loops"].text(), k["assembly"].text()) for n, k in kernels.items()}
        if kernels
        else {},
        bool(of["loops"].maybe_flag()),
    )


def _call(of: Field, tensors: int) -> Call:
    return Call(
        tuple(o.text() for o in of["operators"] or ()),
        of["implementation"].maybe_text(),
        of["multiply_accumulates"].maybe_count(),
        of["traffic_bytes"].count(),
        of["weights_bytes"].count(),
        tuple(_below(n, tensors) for n in of["reads"]),
        tuple(_below(n, tensors) for n in of["writes"]),
    )


def _below(of: Field, end: int) -> int:
    if of.count() >= end:
        raise Malformed(f"{of.path} is {of.count()}, and there are {end}")
    return of.count()


def _tensor(of: Field) -> Tensor:
    begin, end = of["begin"].number(), of["end"].number()
    return Tensor(
        of["name"].text(),
        of["space"].text(),
        of["offset"].count(),
        of["bytes"].count(),
        int(begin),
        max(int(end), int(begin)),
    )


def size(n: float) -> str:
    """Bytes with a unit."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= of:
            return f"{n / of:.3g} {unit}" if n < 1000 * of else f"{n / of:,.0f} {unit}"
    return f"{n:.0f} B"


def count(n: float) -> str:
    """A count with three digits and a prefix."""
    for unit, of in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= of:
            return f"{n / of:.3g} {unit}"
    return f"{n:.3g}"


def duration(us: float) -> str:
    """Microseconds as text with three digits and a unit."""
    for unit, of in (("s", 1e6), ("ms", 1e3)):
        if us >= of:
            return f"{us / of:.3g} {unit}"
    return f"{us:.3g} µs"


def shape_text(shape: Sequence[int], dtype: str) -> str:
    text = "×".join(map(str, shape)) or "scalar"
    return text if dtype == "float32" else f"{text} {dtype}"
