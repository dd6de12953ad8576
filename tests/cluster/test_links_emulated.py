"""The links stage on real emulated hosts: it finds the rates that the links were given, in the right places."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from campaign.observe.links.document import LinksDocument
from campaign.observe.links.external_tools import LinkTestSetup
from campaign.observe.links.lease_links import measure_links
from campaign.observe.links.slow_links import flag_slow_links
from campaign.run.local_launcher import LocalLauncher
from campaign.spec.campaign_file import LinkMeasurement
from tests.unit.run.launch.compositions import composition, emulated_system

pytestmark = [
    pytest.mark.usefixtures("hosts_can_be_emulated"),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
]


def test_the_matrix_shows_the_rates_that_links_were_given(tmp_path: Path) -> None:
    system = emulated_system()
    at = composition((2, 1), (1, 0))
    given = LinkMeasurement(sizes_bytes=(8, 4096, 2**18), repeats=3, warmup=1)
    launcher = LocalLauncher(system, at)
    try:
        measured = measure_links(LinkTestSetup(launcher, at, tmp_path, "links-cluster", tmp_path / "log"), "cpu", given)
    finally:
        launcher.close()
    found = LinksDocument.model_validate(measured)
    assert (found.problems, found.left_out) == ((), ())
    assert found.matrices is not None
    rates: dict[str, list[float]] = {}
    for ways, values in zip(found.kinds, found.matrices.unidirectional_gb_per_s, strict=True):
        for way, value in zip(ways, values, strict=True):
            if way is not None:
                assert value is not None
                rates.setdefault(way, []).append(value)
    # 0.01 and 0.02 GB/s were given; what else the machine does makes single pairs slower, and none faster for long.
    assert median(rates["fabric"]) == pytest.approx(0.01, rel=0.25)
    assert median(rates["fabric + network"]) == pytest.approx(0.01, rel=0.25)
    assert max(rates["network"]) == pytest.approx(0.02, rel=0.25)
    assert max(rates["local"]) > 2 * 0.02
    # Held against links twice as fast, all three kinds that are shaped are too slow.
    assert len(flag_slow_links(measured, system.links, 2 * 0.001, 25)) == 3
