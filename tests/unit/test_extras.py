"""Optional dependencies: each is declared, and a missing one is an error line that names the pip command."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from campaign.common import errors
from campaign.common.errors import ConfigError, require_extra
from campaign.common.paths import ROOT
from campaign.emulators.control_planes.server import ControlPlaneServer


def _server(tmp_path: Path) -> None:
    ControlPlaneServer(cast(Any, None), tmp_path)


MISSING: dict[str, tuple[str, Callable[[Path], object]]] = {
    "emulate": ("trustme", _server),
}


@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_reported_with_its_pip_command(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, use = MISSING[extra]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    monkeypatch.setattr(errors, "requires", lambda _: [f"{each}; extra == '{extra}'" for each in declared])
    monkeypatch.setattr(sys, "executable", "/a place/python")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        use(tmp_path)
    (command,) = re.findall(r"run: (.*)$", str(caught.value).strip())
    assert shlex.split(command) == ["/a place/python", "-m", "pip", "install", *declared]
    assert len(str(caught.value).strip().splitlines()) == 1


def test_what_measures_is_part_of_the_base_and_named_on_its_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    measure = project["optional-dependencies"]["measure"]
    assert set(measure) <= set(project["dependencies"])
    page = (ROOT / "docs/how-to/hosts-without-registry.md").read_text()
    assert " ".join(f'"{each}"' for each in measure) in page


def test_every_extra_that_the_package_names_is_declared_and_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(MISSING) <= set(extras)
    assert extras["all"] == ["composable-campaign[emulate,train]"]


def test_needs_extra_lets_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), require_extra("emulate"):
        1 / 0  # noqa: B018
