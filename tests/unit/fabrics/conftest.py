"""Hosts that host agents are tried on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.fabrics.emulated_host import EmulatedHost, Hosts


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Makes a host whose tools are the first that are found."""
    path = os.environ["PATH"]

    def build(name: str = "host", **options: bool) -> EmulatedHost:
        host = EmulatedHost(tmp_path / name, **options)
        monkeypatch.setenv("PATH", f"{host.bin}{os.pathsep}{path}")
        return host

    return build
