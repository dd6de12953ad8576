"""An installed wheel, outside of any checkout: `campaign init` makes a project in which Snakemake and `campaign run` measure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.common.paths import ROOT

pytest.importorskip("hatchling")

# A figure of the project's own.
HELD_TIME = """
from campaign.report.figure import Drawing, FigureData
from campaign.report.plot import chart

TITLE, SECTION = "Held time", "How long was each lease held?"


def draw(data: FigureData) -> Drawing:
    return chart(data, data.leases, lambda axes: axes.bar(data.leases["configuration"], data.leases["held_s"]), "Bars.", [])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory into which the wheel is installed; its packages come before all others."""
    directory = tmp_path_factory.mktemp("installed")
    built = directory / "dist"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(directory / "site packages")], check=True)
    return directory / "site packages"


def run(installed: Path, directory: Path, *command: str) -> str:
    """What a command of the installed package printed, in a directory of a person's; `campaign` is not on its PATH."""
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not Path(each, "campaign").exists()]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env={
            **os.environ,
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(installed),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_page_that_a_message_or_the_guide_names_is_in_the_wheel(installed: Path) -> None:
    code = installed / "campaign"
    named = {page for path in code.rglob("*.py") for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    guide = code / "_shipped" / "config" / "README.md"
    linked = re.findall(r"\]\((\S+?\.md)", guide.read_text())
    assert named
    assert linked
    assert (code / "py.typed").is_file()
    pages = [*(code / "_shipped" / page for page in named), *(guide.parent / page for page in linked)]
    assert not [page for page in pages if not page.is_file()]


def test_a_project_of_ones_own_is_measured_and_goes_on(installed: Path, tmp_path: Path) -> None:
    said = run(installed, tmp_path, "campaign.cli", "init", "my project")
    assert "snakemake --profile local" in said
    named_pages = re.findall(r"(?:^|and )(/.*?\.md)", said, re.MULTILINE)
    assert len(named_pages) == 2
    assert all(page.startswith(str(installed)) and Path(page).is_file() for page in named_pages)
    project = tmp_path / "my project"
    more = project / "config" / "campaign.yaml"
    with (project / "config" / "systems" / "my-site.yaml").open("a") as site:
        site.write(f"machine_lock: {tmp_path}/machine.lock\n")
    # One device and one repetition show it.
    text = more.read_text().replace("devices_per_host: [1, 2]", "devices_per_host: 1")
    more.write_text(text.replace("repetitions: 3", "repetitions: 1"))
    (project / "scripts/figures").mkdir(parents=True)
    (project / "scripts/figures/held_time.py").write_text(HELD_TIME)
    printed = run(installed, project, "campaign.cli", "run", "--", "-p")
    assert "4 cells, 4 runs: 4 measured, 0 failed, 0 missing" in printed
    assert str(ROOT / "workflow") not in printed
    assert "campaign report results/first" in printed
    assert 'id="held-time"' in (project / "results" / "first" / "report.html").read_text()
    run(installed, project, "campaign.cli", "figures", "--only", "held_time")
    assert (project / "figures" / "held_time.csv").is_file()

    more.write_text(text.replace("repetitions: 3", "repetitions: 2"))
    planned = run(installed, project, "campaign.cli", "run", "--dry-run")
    assert "4 cells, 8 runs, 4 without a record" in planned
    assert re.search(r"^1x1-local +1 +2 +1 +1 +0 ", planned, re.MULTILINE)
    run(installed, project, "snakemake", "--profile", "local", "--until", "measure")
    assert len(list(project.glob("results/first/records/*/*.json"))) == 8
