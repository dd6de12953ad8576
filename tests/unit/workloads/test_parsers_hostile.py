"""What foreign logs do to parsers: every sample under every disguise, torn at many places, and any text at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from campaign.workloads import parsers
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, LogReading, PairMatrix, RunContext, load_format, read_log, read_tests
from campaign.workloads.parsers.reading import NO_END_MARK
from tests.unit.workloads.parsed import LOGS

SAMPLES = sorted(LOGS.glob("*/*.log"))
SCOPES: Mapping[str, RunContext] = {
    "nvidia_bert/dllogger-max-steps": RunContext(ranks=8, batch=4, batch_global=32),
    "nvidia_bert/full-epochs-max-steps-too-large": RunContext(ranks=16, batch=8, batch_global=128),
}
NOISE = (
    "host:3442:3442 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "WARNING: unit 3.5 of 7 is odd\n 41%|####      | 5/12\n"
)


def scope_of(path: Path) -> RunContext:
    return SCOPES.get(f"{path.parent.name}/{path.stem}", RunContext())


def read(path: Path, text: str | bytes) -> LogReading:
    log = Log(text) if isinstance(text, bytes) else Log.from_text(text)
    return read_log(path.parent.name, log, scope_of(path))


def each_line(change: Callable[[int, str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(number, line) for number, line in enumerate(text.splitlines(keepends=True)))


def is_document(text: str) -> bool:
    return text.startswith("{") or "\n{\n" in text or "train/box_loss" in text


DISGUISES: Mapping[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "colours": each_line(lambda _, line: f"\x1b[1;32m{line[:4]}\x1b[0m{line[4:]}"),
    "srun labels": each_line(lambda _, line: f"0: {line}"),
    "srun labels of many ranks": each_line(lambda _, line: f"  3: {line}"),
    "mpirun tags": each_line(lambda _, line: f"[1,0]<stdout>:{line}"),
    "Open MPI 5 tags": each_line(lambda _, line: f"[prterun-host1-4711@1,0]<stdout>: {line}"),
    "horovodrun tags": each_line(lambda _, line: f"[0]<stdout>:{line}"),
    "torchrun tags": each_line(lambda _, line: f"[default0]:{line}"),
    "noise before and behind": lambda text: NOISE + text + NOISE,
    "a line of a megabyte": lambda text: "x" * 1_000_000 + "\n" + text + "1" * 1_000_000 + "\n",
    "binary": lambda text: "\x00\x01\ufffd\x7f\x80\n" + text + "\x00" * 4096 + "\n",
    "repeated": lambda text: text + text,
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguise_changes_nothing(disguise: str) -> None:
    for path in SAMPLES:
        text = path.read_text()
        # A file that the program writes itself has no labels, colours and neighbours.
        if not is_document(text) or disguise == "CRLF":
            assert_alike(path, disguise, read(path, text), read(path, DISGUISES[disguise](text)))


def assert_alike(path: Path, disguise: str, plain: LogReading, disguised: LogReading) -> None:
    if disguise == "repeated" and path.stem in ("client-and-server", "bert-2-ranks", "tracked-only"):
        return  # the same times, or sizes, again are another rank's
    if disguise == "repeated" and " tests (1: " in plain.problem:
        assert f"the log has {2 * int(plain.problem.split()[3])} tests (1: " in disguised.problem, path
        return
    assert (disguised.status, disguised.problem, disguised.flags) == (plain.status, plain.problem, plain.flags) or (
        disguise == "repeated" and "client and server both printed results; the slower result counts" in disguised.flags
    ), path
    assert disguised.throughput_per_s == plain.throughput_per_s, path
    assert disguised.metrics == plain.metrics, path
    assert disguised.curves == plain.curves, path
    assert disguised.matrices == plain.matrices, path


def cells(matrix: PairMatrix) -> dict[tuple[str, str], float | None]:
    rows = zip(matrix.rows, matrix.values, strict=True)
    return {(row, column): value for row, line in rows for column, value in zip(matrix.columns, line, strict=True)}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_log_that_was_cut_off_never_gives_another_number(path: Path) -> None:
    whole = path.read_bytes()
    truth = read(path, whole)
    # Of these nothing says at the end that there is no more: what there is counts, and the exit code says the rest.
    open_ended = {"osu", "perftest", "nvbandwidth", "mlc", "gpu_copy"}
    for cut in range(0, len(whole), max(1, len(whole) // 150)):
        found = read(path, whole[:cut])
        if " tests (1: " in truth.problem:
            assert found.status != "ok" or path.parent.name in open_ended
            continue
        if (
            found.status == "ok"
            and truth.status == "ok"
            and path.parent.name not in open_ended
            and path.stem != "results"
            and not (path.parent.name == "ior" and NO_END_MARK in found.flags)  # whole rows, without a summary
        ):
            assert found.throughput_per_s == truth.throughput_per_s
            scores = {"exact_match_pct", "f1_pct"}  # come after the training
            assert found.metrics.items() >= {k: v for k, v in truth.metrics.items() if k not in scores}.items() or (
                path.stem == "bandwidth-test"
            )
        for name, curve in found.curves.items():
            assert set(curve.points) <= set(truth.curves[name].points) or path.stem == "client-and-server"
        for name, matrix in found.matrices.items():
            assert matrix == truth.matrices[name] or (
                path.parent.name in ("mlc", "gpu_copy") and cells(matrix).items() <= cells(truth.matrices[name]).items()
            )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_is_passed_over_says_nothing(path: Path) -> None:
    """Reading every line gives what reading the lines with needles gives."""
    form = load_format(path.parent.name)
    text = each_line(lambda number, line: line + (NOISE if number % 3 == 0 else ""))(path.read_text())
    if is_document(text):
        return
    with pytest.MonkeyPatch.context() as patch:
        looked_at = read_tests(path.parent.name, Log.from_text(text), scope_of(path))
        every_line = replace(form, needles=(), row_pattern=None)
        patch.setattr(parsers, "load_format", lambda name: every_line)
        assert looked_at == read_tests(path.parent.name, Log.from_text(text), scope_of(path))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
@pytest.mark.parametrize("word", ["nan", "inf"])
def test_numbers_that_are_none_are_never_believed(path: Path, word: str) -> None:
    """Every number in turn is replaced; no number that is not finite comes out, and no rate is believed that is not one."""
    text = path.read_text()
    spots = list(re.finditer(r"\d+\.\d+(?:e[-+]\d+)?", text))
    for spot in spots[:: max(1, len(spots) // 25)]:
        found = read(path, text[: spot.start()] + word + text[spot.end() :])
        numbers = [*found.metrics.values(), *(found.throughput_per_s,) * (found.throughput_per_s is not None)]
        numbers += [value for curve in found.curves.values() for _, value in curve.points]
        numbers += [cell for m in found.matrices.values() for row in m.values for cell in row if cell is not None]
        assert all(value == value and abs(value) != float("inf") for value in numbers)


WORDS = sorted({word for path in SAMPLES for word in re.findall(r"\S+|\s+", path.read_text())[:400] if len(word) < 60})


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.one_of(st.text(max_size=300), st.lists(st.sampled_from(WORDS), max_size=60).map("".join)))
@example(text="")
@example(text="\n" * 50)
@settings(max_examples=30, deadline=None)
def test_no_text_is_too_odd(name: str, text: str) -> None:
    for whole in (text, f"{text}\n"):
        found = read_log(name, Log.from_text(whole), RunContext(ranks=2, batch=4, batch_global=8))
        assert (found.status == "ok") == (not found.problem)


@pytest.mark.parametrize("name", PARSERS)
@given(junk=st.binary(max_size=300), at=st.integers(0, 5_000), pick=st.integers(0, 10))
@settings(max_examples=20, deadline=None)
def test_junk_in_the_middle_raises_nothing(name: str, junk: bytes, at: int, pick: int) -> None:
    paths = [path for path in SAMPLES if path.parent.name == name]
    whole = paths[pick % len(paths)].read_bytes()
    read_log(name, Log(whole[:at] + junk + whole[at:]), RunContext())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_only_the_parser_of_its_program_takes_a_log(path: Path) -> None:
    """Others find nothing in it, so that a log given to the wrong parser makes no number."""
    text = path.read_text()
    takers = {name for name in PARSERS if read_log(name, Log.from_text(text), RunContext()).status != "incomplete"}
    own = load_format(path.parent.name).reader  # two programs may print the same
    assert all(load_format(name).reader is own for name in takers)
    # What is refused is refused for a reason of its own.
    assert takers or path.stem in ("tracked-only", "eval-during-training")


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_printed_is_incomplete(name: str) -> None:
    found = read_log(name, Log.from_text(NOISE), RunContext())
    assert (found.status, found.throughput_per_s, found.metrics) == ("incomplete", None, {})
