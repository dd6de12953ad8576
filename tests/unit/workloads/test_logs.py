from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from campaign.workloads import log_reader
from campaign.workloads.failures import FAILURE_SIGNS, classify_failure
from campaign.workloads.log_reader import Log
from tests.unit.workloads import test_failures
from tests.unit.workloads.test_failures import cause

BARS = "".join(f"{number:3d}%|###       | {number}/100 [00:01<00:02]\r" for number in range(100))


def write(path: Path, *parts: bytes) -> Log:
    path.write_bytes(b"".join(parts))
    return Log(path)


def test_lines_are_what_a_person_sees() -> None:
    log = Log.from_text("a\r\nb\rc\x1b[1;31md\x1b[0m\n\n\x1b]0;title\x07e")
    assert list(log.read_lines()) == ["a", "b", "cd", "", "e"]
    assert list(log.read_lines(only_ended=True)) == ["a", "b", "cd", ""]
    assert list(Log.from_text("").read_lines()) == []


def test_what_is_no_text_is_replaced() -> None:
    assert list(Log(b"a\xff\n\x00b\n").read_lines()) == ["a\ufffd", "\x00b"]


def test_lines_with_a_needle_come_once_and_in_order() -> None:
    log = Log.from_text("rate: 1 time: 2\nnothing\ntime: 3\nrate: 4 rate: 5\n")
    assert list(log.read_lines([b"rate", b"time"])) == ["rate: 1 time: 2", "time: 3", "rate: 4 rate: 5"]


def test_a_needle_is_found_behind_colours_and_between_bars() -> None:
    assert list(Log.from_text(f"{BARS}\x1b[32mra\x1b[0mte: 1\n{BARS}").read_lines([b"rate"])) == ["rate: 1"]


def test_rows_are_found_on_every_line_the_first_included() -> None:
    assert list(Log.from_text("1 2\nx\n3 4\n5 6").read_lines(rows=re.compile(rb"\n\d+ \d+"))) == ["1 2", "3 4", "5 6"]


def test_rows_that_end_with_their_line_are_found_wherever_the_log_is_cut_for_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(f"{number} 5\n" for number in range(100))
    for size in (7, 16, 64):
        monkeypatch.setattr(log_reader, "_CHUNK_BYTES", size)
        assert "".join(f"{row}\n" for row in Log.from_text(text).read_lines(rows=re.compile(rb"\n\d+ 5(?=\n)"))) == text


@given(
    st.text(alphabet="ab \r\n\x1b[m1", max_size=60),
    st.integers(1, 9),
    st.sampled_from([(), (b"a",), (b"b", b"1")]),
)
@example("a\r\nb", 2, ())
def test_where_a_chunk_ends_is_not_seen(text: str, size: int, needles: tuple[bytes, ...]) -> None:
    """The lines are those of the whole text, wherever it is cut for reading; a cut between CR and LF is none."""
    with pytest.MonkeyPatch.context() as patch:
        whole = list(Log.from_text(text).read_lines(needles))
        patch.setattr(log_reader, "_CHUNK_BYTES", size)
        assert [line for line in Log.from_text(text).read_lines(needles) if line] == [line for line in whole if line]
        assert b"".join(Log.from_text(text).read_chunks()) == text.encode()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything a sixty-fourth of what it is, so that a few megabytes are a long log."""
    for name in ("_CHUNK_BYTES", "_MAX_EXCERPT_BYTES", "_MAX_LINE_BYTES", "_TAIL_BYTES"):
        monkeypatch.setattr(log_reader, name, getattr(log_reader, name) >> 6)


@pytest.mark.usefixtures("small")
def test_a_line_without_end_is_left_out_and_takes_no_memory(tmp_path: Path) -> None:
    log = write(tmp_path / "log", b"before\n", b"x" * (4 << 20), b"\n", b"behind\n" * 1_000)
    tracemalloc.start()
    assert list(log.read_lines()) == ["before", *["behind"] * 1_000]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("filler", [b"a line that says nothing at all\n", BARS.encode()])
def test_memory_is_that_of_a_few_chunks_whatever_the_length(tmp_path: Path, filler: bytes) -> None:
    log = write(tmp_path / "log", filler * ((4 << 20) // len(filler)), b"rate: 1\n")
    tracemalloc.start()
    assert list(log.read_lines([b"rate: "])) == ["rate: 1"]
    assert len(log.read_excerpt(FAILURE_SIGNS)) < 64 << 10
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_the_excerpt_of_a_short_log_is_the_log() -> None:
    assert Log.from_text("a\nb\n").read_excerpt() == "a\nb\n"


CAUSES = [
    (b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "oom_device"),
    (b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n", "oom_host"),
    (b"RuntimeError: [x.cc:78] Timed out waiting 5000ms for recv operation to complete\n", "comm_timeout"),
    (
        b"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'\n",
        "oom_device",
    ),
    (b"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n", "comm_error"),
    (b"ValueError: no such batch\n", "crashed"),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("said", "status"), CAUSES)
def test_a_cause_deep_in_a_long_log_is_found(tmp_path: Path, said: bytes, status: str) -> None:
    noise = b"host:1:1 [0] NCCL INFO Channel 00 : 0 -> 1\n" * (1 << 12)
    # After the cause come its consequences, in great numbers.
    log = write(tmp_path / "log", noise, said, b"RuntimeError: Connection closed by peer [::1]:4711\n" * 10_000, noise)
    found = cause(log, [1, 1])
    assert found[0] == status
    assert said.decode().splitlines()[0] in found[1].evidence
    assert len(log.read_excerpt(FAILURE_SIGNS)) < 1 << 20


@pytest.mark.usefixtures("small")
def test_the_first_cause_in_time_wins_in_a_long_log_too(tmp_path: Path) -> None:
    noise = b"step\n" * (1 << 15)
    timeout = b"RuntimeError: Timed out waiting 5000ms for send operation\n"
    oom = b"RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
    for first, second, status in ((timeout, oom, "comm_timeout"), (oom, timeout, "oom_device")):
        found = cause(write(tmp_path / "log", first, noise, second), [1, 1])
        assert found[0] == status


@pytest.mark.parametrize(
    "text", [text for name, text in vars(test_failures).items() if name.isupper() and name != "INNOCENT"]
)
def test_every_signature_has_its_sign(text: str) -> None:
    """What `classify` knows in a short log it finds in a long one."""
    assert any(sign in text.encode() for sign in FAILURE_SIGNS)


@pytest.mark.usefixtures("small")
def test_of_a_log_of_a_run_that_ended_well_only_lines_about_device_memory_are_read(tmp_path: Path) -> None:
    noise = b"host:1:1 [0] NCCL INFO Channel 00 : 0 -> 1\n" * (1 << 12) + b"Connection closed by peer\nMemoryError\n"
    path = tmp_path / "log"
    assert classify_failure(write(path, noise), [0, 0], timed_out=False, killed_by_launcher=False) is None
    found = cause(write(path, noise, CAUSES[0][0], noise), [0, 0])
    assert (found[0], found[1].rank, found[1].evidence) == ("oom_device", 1, CAUSES[0][0].decode().strip())


def test_the_tail_is_evidence() -> None:
    assert Log.from_text("x" * 5000 + "\nthe end\n").read_tail(7) == "the end"
    assert Log.from_text("").read_tail() == ""


@pytest.mark.parametrize(
    "label", ["1: ", "[1,1]<stderr>:", "[prterun-n1-4711@1,1]<stderr>: ", "[1]<stderr>:", "[default1]:"]
)
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("MemoryError", "oom_host"),
        ("ValueError: no such batch", "crashed"),
        ("n1: Test CUDA failure common.cu:303 'out of memory'", "oom_device"),
    ],
)
def test_the_rank_is_read_from_every_launchers_label(label: str, line: str, status: str) -> None:
    found = cause(Log.from_text(f"{label}fine\n{label}{line}\n"), [1, 1])
    assert (found[0], found[1].rank) == (status, 1)
