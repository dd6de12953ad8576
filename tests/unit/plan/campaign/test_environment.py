"""envs/campaign.yaml installs what pyproject.toml asks for."""

from __future__ import annotations

import tomllib

import yaml

from campaign.common.paths import ROOT


def test_the_environment_of_the_stages_has_the_dependencies_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *_, pip = yaml.safe_load((ROOT / "envs" / "campaign.yaml").read_text())["dependencies"]
    assert pip["pip"] == project["dependencies"]
