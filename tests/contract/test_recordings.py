"""What sites have recorded (`campaign fabric record`): each adapter comes to the findings that stand in the file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from campaign.cli.cluster import read_system_file
from campaign.emulators.control_planes.replay import served
from campaign.lease.campaign_leases import Site
from campaign.lease.record_site import walk

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "fabrics" / "recordings").glob("*.yaml"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_is_read_as_its_site_read_it(path: Path, tmp_path: Path) -> None:
    recorded = yaml.safe_load(path.read_text())
    server, replay = served(path)
    with server:
        system = tmp_path / "replayed.yaml"
        system.write_text(yaml.safe_dump(replay.system("replayed", tmp_path)))
        with Site(read_system_file(str(system)), tmp_path / "results").fabric() as fabric:
            assert fabric.controlled is not None
            fabric.controlled.force = True  # nobody looks on the hosts of a recording
            found = walk(fabric, tmp_path / "journals", tuple(recorded["trial"]) or None)
            assert [asdict(one) for one in found] == recorded["findings"]
