"""Records of the counting plugin: differences, calibration, and files that are torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc_rpc.counters import (
    BEGIN,
    CALIBRATION,
    END,
    RECORD,
    Counter,
    CounterError,
    parse_records,
    per_call,
)


def mark(tag: int, index: int, *counters: int) -> bytes:
    return RECORD.pack(tag, index, *counters)


CALIBRATED = mark(BEGIN, CALIBRATION, 0, 0, 5, 0, 1, 10) + mark(END, CALIBRATION, 0, 0, 6, 0, 3, 14)


def test_counts_are_differences_less_the_cost_of_marking() -> None:
    data = CALIBRATED + mark(BEGIN, 3, 0, 0, 6, 0, 3, 14) + mark(END, 3, 64, 2, 23, 8, 15, 38)
    (call,) = per_call(parse_records(data))
    assert call.index == 3
    assert call.by_class == {
        "mac": 64, "vector": 2, "load": 16, "store": 8, "branch": 10, "scalar": 20
    }  # fmt: skip
    assert call.total == 120


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (CALIBRATED[:-1], "counter file is torn: 111 bytes are not a multiple of 56\n"
         "  try: run again; QEMU was killed while it wrote, or the disk is full"),
        (mark(7, 0, *[0] * 6), "counter file is torn: record 0 has tag 7, neither begin nor end"),
        (CALIBRATED + mark(BEGIN, 4, *[9] * 6), "call 4 began and never ended: was it killed?"),
        (mark(BEGIN, 0, *[0] * 6) + mark(END, 0, *[1] * 6), "call 0 comes before any calibration"),
        (mark(BEGIN, 0, *[0] * 6) + mark(END, 1, *[1] * 6),
         "marks do not pair: tag 1 of call 0 is followed by tag 2 of call 1"),
        (mark(BEGIN, 0, *[0] * 6) * 2,
         "marks do not pair: tag 1 of call 0 is followed by tag 1 of call 0"),
    ],
)  # fmt: skip
def test_torn_files(data: bytes, message: str) -> None:
    with pytest.raises(CounterError) as caught:
        per_call(parse_records(data))
    assert str(caught.value) == message


def test_the_counter_passes_over_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    counter = Counter(path)
    counter.start()
    assert counter.take() == []
    path.write_bytes(CALIBRATED + mark(BEGIN, 0, *[9] * 6))  # and then it crashed
    counter.start()
    with path.open("ab") as file:
        file.write(CALIBRATED + mark(BEGIN, 0, *[20] * 6) + mark(END, 0, *[40] * 6))
    (call,) = counter.take()
    assert call.by_class["mac"] == 20
    assert counter.take() == []
