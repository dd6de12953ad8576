"""The how-to on notebooks is executed as a notebook, and `campaign.load` gives what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import campaign
from campaign.common.errors import CampaignError, ConfigError, RecordError
from campaign.common.paths import ROOT
from campaign.report.loaded_results import LoadedResults
from tests import measured_campaign

HOW_TO = ROOT / "docs/how-to/notebook.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the results of a measured campaign, under the name that the how-to has."""
    directory = tmp_path_factory.mktemp("notebook")
    measured_campaign.write(directory).rename(directory / "results/demo")
    return directory


@pytest.fixture(scope="module")
def results(directory: Path) -> LoadedResults:
    return campaign.load(directory / "results/demo")


def execute(directory: Path) -> list[nbformat.NotebookNode]:
    """Execute the code of the how-to in a kernel of Jupyter, and return its cells with what they print and show."""
    codes = re.findall(r"^```python\n(.*?)^```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    cells = [nbformat.v4.new_code_cell(code) for code in codes]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(directory)}}).execute()
    return list(notebook.cells)


def test_the_notebook_runs_and_its_numbers_are_those_of_the_page(directory: Path) -> None:
    overview, cells, run, ratios, checks, *_, recommendation, several = execute(directory)
    assert "Node spread" in overview.outputs[0].data["text/html"]
    assert "<svg" in overview.outputs[0].data["text/html"]
    assert "mean_per_s" in cells.outputs[0].data["text/html"]
    assert re.search(r"1x.*: median of 20 steps 0\.\d{4} s", run.outputs[0].text)
    assert "ratio_low" in ratios.outputs[0].data["text/html"]
    assert re.search(r"bf16 is 1\.\d\d to 1\.\d\d times as fast", checks.outputs[0].text)
    assert "build" in recommendation.outputs[0].data["text/html"]
    assert "results/demo" in several.outputs[-1].data["text/plain"]
    assert (directory / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_ratios_are_the_numbers_of_the_figures(results: LoadedResults) -> None:
    overhead = results.ratios("overhead")
    fabric = overhead[overhead["configuration"] == "1x2-fabric"]
    # The planted rates of 1x2-local and 1x2-fabric are 1.9 and 1.7.
    assert fabric["ratio"].to_numpy() == pytest.approx([1.7 / 1.9] * 4, rel=0.02)
    assert (fabric["ratio_low"] < fabric["ratio"]).all()
    assert (fabric["ratio_high"] > fabric["ratio"]).all()
    assert (fabric["p_holm"] >= fabric["p"]).all()
    assert set(fabric["against_configuration"]) == {"1x2-local"}


def test_the_settings_of_matplotlib_stay(results: LoadedResults) -> None:
    before = dict(mpl.rcParams)
    figure = results.figure("precision")
    assert len(figure.axes) >= 1
    assert dict(mpl.rcParams) == before


def test_wrong_names_are_refused_with_those_that_there_are(results: LoadedResults, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'speed' is no kind of ratio; kinds are scaling, node_spread"):
        results.ratios("speed")
    with pytest.raises(ConfigError, match=r"'speed' is no figure; figures are allreduce"):
        results.figure("speed")
    with pytest.raises(ConfigError, match=r"the figure systems has no picture"):
        results.figure("systems")
    with pytest.raises(RecordError, match=r"no run 7 of cell none; \.runs lists all runs"):
        results.steps(("none", 7))
    with pytest.raises(CampaignError, match=r"nothing: no such file or directory; give a results directory"):
        campaign.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="no source"):
        campaign.load()


def test_a_directory_a_campaign_file_and_an_archive_have_the_same_cells(tmp_path: Path) -> None:
    directory = measured_campaign.write(tmp_path)
    (path,) = (path for path in tmp_path.glob("*.yaml") if "configurations" in path.read_text())
    archive = tmp_path / "campaign.zip"
    subprocess.run(
        [sys.executable, "-m", "campaign.cli", "archive", str(directory), "--output", str(archive)], check=True
    )
    three = campaign.load(directory, path, archive, results=tmp_path / "results")
    assert list(three.cells["source"].unique()) == [str(directory), str(path), str(archive)]
    first, *others = [part.cells for part in three.campaigns]
    for other in others:
        pd.testing.assert_frame_equal(first, other)
    with pytest.raises(ConfigError, match=r"3 campaigns are loaded; select one with \.campaigns\[0\] first"):
        three.recommend()


def test_a_run_that_started_nothing_has_no_log(tmp_path: Path) -> None:
    directory = measured_campaign.write(tmp_path)
    results = campaign.load(directory)
    run = results.runs.iloc[0]
    with pytest.raises(RecordError, match="so it has no log"):
        results.log(run)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, campaign; print(sorted(name for name in sys.modules if name.startswith(('pandas', 'campaign.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
