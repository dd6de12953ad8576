"""Whatever became of one file of finished results: every command ends, and says it in one message or goes on without the file."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.cli.main import main
from campaign.report import figure
from campaign.report.write import draw_figures
from tests.campaign_files import write_files
from tests.warm_start import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("CAMPAIGN_FUZZ_EXAMPLES", "20"))
PATIENCE_S = 60
# Whose files each command reads.
COMMANDS = {
    "plan mine/campaign.yaml": ("plan/", "records/", "shared/", "work/", "leases/", "tables/costs.json", "progress", "manifests/"),
    "status mine/campaign.yaml": ("plan/", "records/", "progress", "manifests/", "work/"),
    "collect results/small/plan/plan.json": ("plan/plan.json", "records/", "shared/", "leases/", "manifests/", "telemetry/"),
    "report results/small --output r.html": ("tables/", "figures/", "recommendation/", "plan/"),
    "recommend results/small --output rec": ("tables/",),
    "compare results/small results/small --output c.html": ("tables/",),
    "summary results/small --output s.txt": ("tables/", "figures/", "recommendation/", "plan/", "manifests/"),
    "verify mine/campaign.yaml": ("records/", "shared/", "plan/", "leases/"),
}  # fmt: skip
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**64, 1e308, "", "x", "../x", "\0", "<b>", [], {}, [None], {"x": None}, [[]], float("nan")),
    *(10**400, "-rf", {"0": 0}),
)
RAW = (
    b"",
    b"\0",
    b"{",
    b"[]",
    b"null",
    b"5",
    b'"x"',
    b"{}",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5000,
)


@pytest.fixture(scope="module", autouse=True)
def few_figures() -> Iterator[None]:
    """Draw only two figures: all are read alike."""
    with mock.patch.object(figure, "list_figure_names", return_value=["link_matrices", "scaling"]):
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose campaign was measured: every file that a run leaves."""
    project = tmp_path_factory.mktemp("measured")
    for name in ("workflow", "scripts", "reports", "local", "config"):
        (project / name).symlink_to(ROOT / name)
    write_files(
        project / "mine",
        {
            "campaign.configurations": [{"devices_per_host": [1, 2]}],
            "campaign.axes": {"workload": ["nano", "steps"], "batch": [2], "precision": ["fp32"]},
            "campaign.protocol": {
                **{"repetitions": 2, "compositions": 1, "warmup_steps": 1, "measured_steps": 3, "telemetry_s": 0.1},
                "links": {"sizes_bytes": [8, 4096], "repeats": 3, "warmup": 1, "budget_s": 4},
            },
        },
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "TMPDIR": str(project)}
    code, said = run(
        ["snakemake", "--profile", "local", "--until", "recommend", "--config", "campaign=mine/campaign.yaml"],
        project,
        environment,
        300,
    )
    assert code == 0, said
    results = project / "results" / "small"
    draw_figures(results / "tables", results / "figures")
    return project


@contextmanager
def ends_in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"still running after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a document, as keys and indices; of long lists the first."""
    yield at
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document[:3])
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*at, key))


def replaced(document: Any, at: tuple[Any, ...], value: Any, *, removed: bool) -> Any:
    if not at:
        return value
    owner = document
    for key in at[:-1]:
        owner = owner[key]
    if removed:
        del owner[at[-1]]
    else:
        owner[at[-1]] = value
    return document


def damage(path: Path, data: st.DataObject) -> str:
    """Do something to a file; says what."""
    kinds = ["pipe", "zeros", "directory", "gone", "nowhere", "loop", "raw", "cut", "flipped"]
    is_json = path.suffix == ".json"
    kind = data.draw(st.sampled_from([*kinds, *["changed"] * 12 * is_json, "removed" if is_json else "raw"]))
    content = path.read_bytes()
    if kind in ("changed", "removed"):
        document = json.loads(content)
        document.pop("checksum", None) if isinstance(document, dict) else None
        at = data.draw(st.sampled_from(list(places(document))[kind == "removed" :] or [()]))
        odd = data.draw(st.sampled_from(ODD))
        path.write_text(json.dumps(replaced(document, at, odd, removed=kind == "removed" and at != ())))
        return f"{kind} {at} {odd if kind == 'changed' else ''}"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "nowhere":
        path.symlink_to("/nowhere/at/all")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "raw":
        number = data.draw(st.integers(0, len(RAW) - 1))  # the content itself would fill screens
        path.write_bytes(RAW[number])
    elif kind == "cut":
        path.write_bytes(content[: data.draw(st.integers(0, max(0, len(content) - 1)))])
    elif kind == "flipped" and content:
        at = data.draw(st.integers(0, len(content) - 1))
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
    return kind


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_damaged_results_are_told_in_one_message(
    measured: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    project = measured.parent / "damaged"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(measured, project, symlinks=True)
    monkeypatch.chdir(project)
    command, read = data.draw(st.sampled_from(sorted(COMMANDS.items())))
    results = project / "results" / "small"
    files = [
        path
        for path in sorted(results.rglob("*"))
        if path.is_file() and str(path.relative_to(results)).startswith(read)
    ]
    # A directory with many files is not more than one with few.
    kind = data.draw(st.sampled_from(sorted({path.relative_to(results).parts[:2] for path in files})))
    path = data.draw(st.sampled_from([path for path in files if path.relative_to(results).parts[:2] == kind]))
    what = damage(path, data)

    with ends_in_time():
        result = CliRunner().invoke(main, command.split())

    where = f"{command}: {path.relative_to(project)}: {what}: {result.output[-300:]}"
    assert isinstance(result.exception, SystemExit | None), f"{where}: {result.exception!r}"
    assert result.exit_code in (0, 1), where
    assert "Traceback" not in result.output, where
