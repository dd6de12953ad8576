"""`campaign archive` and its sisters, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from campaign.cli.main import main
from tests.campaign_records import change
from tests.unit.archive import archive_data


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a measured campaign."""
    campaign = archive_data.campaign_in(tmp_path / "config")
    archive_data.fill(campaign, tmp_path / "results" / "small")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["archive", *words])


def test_what_is_no_command_is_a_campaign(place: Path) -> None:
    for words in (("config/campaign.yaml",), ("pack", "config/campaign.yaml"), ()):
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("results/small.zip: ")
        assert "31 records" in result.output
    assert run("--output", "x.zip", "--no-telemetry", "--license", "CC0-1.0").output.startswith("x.zip: ")


def test_writing_again_says_what_it_kept(place: Path) -> None:
    run()
    paths = sorted((place / "results" / "small" / "records").rglob("*.1.json"))
    paths[0].unlink()
    change(paths[1])
    output = run().output
    assert f"kept 1 file that only the existing archive had: records/{paths[0].parent.name}/{paths[0].name}" in output
    assert "moved 1 record of the existing archive, whose runs were measured again, to superseded/" in output


def test_verify_says_that_it_is_whole_or_what_is_not(place: Path) -> None:
    run("--output", "a.zip")
    output = run("verify", "a.zip").output
    assert output.startswith("a.zip: intact; archive/3, campaign small, ")
    assert "31 records, by composable-campaign" in output
    Path("a.zip").write_bytes(Path("a.zip").read_bytes()[:-40])
    result = run("verify", "a.zip")
    assert result.exit_code == 1
    assert "error: a.zip is not a complete archive" in result.output


def test_extract_says_how_to_go_on(place: Path) -> None:
    run("--output", "a.zip")
    result = run("extract", "a.zip", "--into", "elsewhere")
    assert (
        result.output == "elsewhere/small\ncampaign report elsewhere/small/config/campaign.yaml --results elsewhere\n"
    )
    assert run("elsewhere/small/config/campaign.yaml", "--results", "elsewhere").exit_code == 0
    again, first = Path("elsewhere/small.zip"), Path("a.zip")
    assert again.read_bytes() == first.read_bytes()
