"""`campaign init`: a project whose campaign is valid, over nothing that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli import run as run_command
from campaign.cli.main import main
from campaign.common.paths import ROOT
from campaign.plan.campaign.resolve import load_campaign


def test_a_project_has_a_valid_campaign_profiles_and_a_snakefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["init", "new project"])
    assert result.exit_code == 0, result.output
    project = tmp_path / "new project"
    own = project / "own.yaml"
    own.write_bytes((project / "config" / "campaign.yaml").read_bytes())
    for campaign in (project / "config" / "campaign.yaml", own):
        assert load_campaign(campaign).system.name == "my-site"
    assert "use rule * from" in (project / "workflow" / "Snakefile").read_text()
    for profile in ("local", "slurm", "profiles/local", "profiles/slurm"):
        assert (project / profile / "config.yaml").read_bytes() == (ROOT / profile / "config.yaml").read_bytes()
    monkeypatch.chdir(project)
    command: list[str] = []
    monkeypatch.setattr(run_command.os, "execv", lambda _, words: command.extend(words))
    CliRunner().invoke(main, ["run", "--profile", "slurm"], catch_exceptions=False)
    assert str(project / "profiles" / "slurm") in command  # whose values.yaml names the account


def test_no_file_that_exists_is_changed(tmp_path: Path) -> None:
    own = tmp_path / "config" / "campaign.yaml"
    own.parent.mkdir()
    own.write_text("name: mine\n")
    result = CliRunner().invoke(main, ["init", str(tmp_path)])
    assert result.exit_code == 1
    assert "already contains config/campaign.yaml" in result.output
    assert own.read_text() == "name: mine\n"
    assert not (tmp_path / "workflow").exists()
