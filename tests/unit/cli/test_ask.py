"""`campaign ask`: the rounds of a question, each chosen by what was measured before, as the checkpoint of the workflow asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli import run as run_command
from campaign.cli.main import main
from campaign.insight import question_rounds
from campaign.paths import Results
from tests.measured_rounds import ASSUMED, BEST, asked, measure, open_rounds, two_configurations


class _Asking:
    """The checkpoint: asks again and again, and measures what it is told to."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(question_rounds, "decide", two_configurations)
        self.directory, self.request = directory, asked(directory)
        self.results = Results(self.request.results, "small")

    def given(self) -> list[str]:
        return [
            str(self.request.campaign),
            f"--results={self.request.results}",
            f"--assume={ASSUMED.text}",
            "--until",
            BEST,
        ]

    def ask(self, number: int) -> tuple[dict[str, object], str]:
        out, before = (self.directory / f"asked.{each}.json" for each in (number, number - 1))
        told = CliRunner().invoke(
            main, ["ask", *self.given(), "--output", str(out), *(["--before", str(before)] if number > 1 else [])]
        )
        assert told.exit_code == 0, told.output
        return json.loads(out.read_text()), " ".join(told.output.split())

    @property
    def rounds(self) -> list[str]:
        return sorted(path.name for path in self.results.questions.rglob("*.json"))


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Asking:
    return _Asking(tmp_path, monkeypatch)


def test_each_asking_gives_the_leases_of_a_round_until_there_is_an_answer(asking: _Asking) -> None:
    for number in (1, 2):
        said, told = asking.ask(number)
        assert (said["round"], len(said["leases"])) == (number, 2)  # type: ignore[arg-type]
        assert f"round {number}: 2 leases (" in told
        documents = {path.stem for path in asking.results.lease_plans.iterdir()}
        assert documents >= set(said["leases"])  # type: ignore[call-overload]
        measure(open_rounds(asking.request))
    said, told = asking.ask(3)
    assert said == {"round": 3, "end": "answered"}
    assert f"until {BEST}: answered 1x1-fabric is the best, by 8 runs. Either may be. Two compositions of each." in told
    assert asking.rounds == ["round-01.json", "round-02.json", "round-03.json"]


def test_a_round_that_stays_incomplete_ends_the_question_for_now_and_is_the_one_that_goes_on(asking: _Asking) -> None:
    first, _ = asking.ask(1)
    said, told = asking.ask(2)
    assert said == {"round": 1, "end": "incomplete"}
    assert "round 1 is not complete; the same command again goes on with it" in told
    assert asking.rounds == ["round-01.json"]
    again, _ = asking.ask(1)
    assert again == first
    measure(open_rounds(asking.request))
    assert asking.ask(2)[0]["round"] == 2


def test_records_that_were_set_aside_are_measured_before_the_question_is_answered_again(asking: _Asking) -> None:
    for number in (1, 2):
        asking.ask(number)
        measure(open_rounds(asking.request))
    assert asking.ask(3)[0]["end"] == "answered"
    gone = next(asking.results.records.glob("*/*.json"))
    gone.unlink()
    again, _ = asking.ask(1)
    assert len(again["leases"]) == 1  # type: ignore[arg-type]
    measure(open_rounds(asking.request))
    assert asking.ask(2)[0]["end"] == "answered"
    assert len(asking.rounds) == 3, "the same measurements were weighed twice"
    gone.unlink()
    measure(open_rounds(asking.request), 1.01)
    assert asking.ask(3)[0]["end"] == "answered"
    assert len(asking.rounds) == 4


def test_run_passes_the_question_on_to_snakemake(asking: _Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    command: list[str] = []
    monkeypatch.setattr(run_command.os, "execv", lambda _, words: command.extend(words))
    told = CliRunner().invoke(main, ["run", *asking.given(), "-n", "--", "--quiet"])
    assert told.exit_code == 0, told.output
    assert f"question={BEST}" in command
    assert command.index("--quiet") < command.index("--config")
    assert "-n" in command
    assert not asking.results.root.exists()
