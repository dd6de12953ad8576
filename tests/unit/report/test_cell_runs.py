from __future__ import annotations

import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from campaign.analysis.tables.runs import build_runs_table
from campaign.report import cell_runs
from campaign.report.cell_runs import ResultFiles, build_runs_document
from tests.unit.report import report_data as synthetic


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return build_runs_table(synthetic.records(synthetic.planned()))


def unpack(packed: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(b64decode(packed)))
    for name in ("number", "status", "flags"):
        document[name] = [document[name]["texts"][number] for number in document[name]["values"]]
    return document


def test_each_run_has_its_row_number_status_value_log_and_record(runs: pd.DataFrame) -> None:
    ids = list(dict.fromkeys(runs["cell_id"]))[::-1]
    kept = runs[runs["cell_id"] != ids[-1]]
    record = f"records/{kept['cell_id'].iloc[0][:2]}/{kept['cell_id'].iloc[0]}.1.json"
    files = ResultFiles("", frozenset([record, *kept["log"]]))
    listed = unpack(build_runs_document(runs, ids[:-1], pd.DataFrame(), files))
    assert [ids[row] for row in listed["cell"]] == kept["cell_id"].tolist()
    assert {*listed["number"]} == {f"composition 1, run {n}" for n in kept["repetition"].unique()}
    assert listed["log"] == kept["log"].tolist()
    assert listed["record"] == [record, *[""] * (len(kept) - 1)]
    failed = kept["status"] != "ok"
    assert failed.any()
    for status, reason, text, value in zip(
        kept["status"], kept["failure_reason"], listed["status"], listed["value"], strict=True
    ):
        assert text == (status if status == "ok" else f"{status}: {reason}")
        assert (value is None) == (status != "ok")
    assert [value for value in listed["value"] if value] == pytest.approx(kept.loc[~failed, "value"].tolist(), rel=1e-5)


def test_only_files_that_exist_are_linked_from_the_place_of_the_page(runs: pd.DataFrame, tmp_path: Path) -> None:
    results = tmp_path / "results" / "a#b"
    log = runs["log"].iloc[0]
    (results / log).parent.mkdir(parents=True)
    (results / log).touch()
    files = ResultFiles.list(results, tmp_path / "pages" / "page.html")
    assert files == ResultFiles("../results/a#b", frozenset([log]))
    assert ResultFiles.list(results, None) == ResultFiles("", frozenset([log]))
    listed = unpack(build_runs_document(runs, list(runs["cell_id"].unique()), pd.DataFrame(), files))
    assert {*listed["log"]} == {"", log}
    assert {*listed["record"]} == {""}


def test_steps_are_drawn_from_zero_to_the_longest_of_the_cell(
    runs: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = runs["cell_id"].iloc[0]
    numbers = runs.loc[runs["cell_id"] == cell, "repetition"].tolist()
    times = {numbers[0]: [0.0, 1.0, 2.0, 3.5], numbers[1]: [3.5] + [0.7] * 399}
    steps = pd.concat(
        pd.DataFrame({"cell_id": cell, "repetition": number, "time_s": seconds}) for number, seconds in times.items()
    )
    own = runs[runs["cell_id"] == cell]
    drawn = unpack(build_runs_document(own, [cell], steps, None))["steps"]
    assert drawn == ["0akz", "z" + "7" * 39, *[""] * (len(own) - 2)]
    monkeypatch.setattr(cell_runs, "MAX_RUNS_WITH_STEPS", len(own) - 1)
    assert "steps" not in unpack(build_runs_document(own, [cell], steps, None))
