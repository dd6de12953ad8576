"""What an import does once, however many logs and workloads there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.plan.matrix import Specifications
from campaign.spec.record import RecordStore
from tests.unit.importing.logs_of_old import put, write_map


def _count(original: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def counted(*words: Any) -> Any:
        calls[name] += 1
        return original(*words)

    return counted


def _count_calls(here: Path, logs_per_workload: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Import logs of two workloads, and count what is made for all records together."""
    here.mkdir()
    parser = {"parsers": [{"metric": "throughput_per_s", "regex": "rate (.*)"}]}
    write_map(here / "map.yaml", workloads={"a": parser, "b": parser})
    for number in range(logs_per_workload):
        for name in ("a", "b"):
            put(here / "logs", f"1x1/{name}-b8-fp32-r{number + 1}.log", f"rate {number + 1}\n")
    calls: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        for owner, name in ((Specifications, "__init__"), (RecordStore, "share_document"), (RecordStore, "write")):
            patch.setattr(owner, name, _count(getattr(owner, name), name, calls))
        words = ["import", str(here / "logs"), "--map", str(here / "map.yaml"), "--results", str(here / "results")]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return calls


def test_workloads_are_hashed_and_documents_shared_once_for_all_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (_count_calls(tmp_path / name, count, monkeypatch) for name, count in (("few", 2), ("many", 12)))
    assert (few["write"], many["write"]) == (2 * 2, 2 * 12)  # each record once
    # One of the matrix, which is expanded once unless there are copies, one of the rehearsal and one of the records.
    assert many["__init__"] == few["__init__"] == 3
    assert many["share_document"] == few["share_document"]
