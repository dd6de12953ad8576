"""What sites have recorded (`campaign fabric record`): each adapter comes to the findings that stand in the file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from campaign.cli.cluster import read_system_file
from campaign.emulators.control_planes.replay import open_replay_server
from campaign.lease.campaign_leases import Site
from campaign.lease.record_site import walk_control_plane

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "fabrics" / "recordings").glob("*.yaml"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_is_read_as_its_site_read_it(path: Path, tmp_path: Path) -> None:
    recorded = yaml.safe_load(path.read_text())
    server, replay = open_replay_server(path)
    with server:
        system = tmp_path / "replayed.yaml"
        system.write_text(yaml.safe_dump(replay.build_system_document("replayed", tmp_path)))
        with Site(read_system_file(str(system)), tmp_path / "results").open_fabric() as fabric:
            assert fabric.control_plane_access is not None
            fabric.control_plane_access.force = True  # nobody looks on the hosts of a recording
            found = walk_control_plane(fabric, tmp_path / "journals", tuple(recorded["trial"]) or None)
            assert [asdict(one) for one in found] == recorded["findings"]
