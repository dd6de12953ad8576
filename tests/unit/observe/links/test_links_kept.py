"""Links of a campaign as they are read back: whole, with the models that follow, or an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.analysis.tables.collect import read_campaign_results
from campaign.common.errors import RecordError
from campaign.observe.links.alpha_beta_model import predict_allreduce_s
from campaign.observe.links.document import LinksDocument
from campaign.observe.links.lease_links import SCHEMA, list_measurement_times, read_link_measurements
from campaign.spec.record import RecordStore
from tests.campaign_files import load
from tests.campaign_records import fill, write

ALPHA_S, BYTES_PER_S = 20e-6, 5e9


def document(ranks: int = 4) -> dict[str, Any]:
    """All-reduces that take exactly what the ring model says."""
    sizes = (8, 65536, 2**20, 2**24)
    times = [float(predict_allreduce_s(size, ranks, ALPHA_S * 1e6, BYTES_PER_S / 1e9)) for size in sizes]
    rates = [size / seconds / 1e9 for size, seconds in zip(sizes, times, strict=True)]
    allreduce = {"ranks": ranks, "size_bytes": sizes, "time_s": times, "algbw_gb_per_s": rates, "busbw_gb_per_s": rates}
    found = LinksDocument.model_validate(
        {"runs_on": "cpu", "devices": (), "kinds": (), "settings": {}, "allreduce": allreduce}
    )
    return found.model_dump(mode="json")


def keep(results: Path, found: dict[str, Any]) -> Path:
    path = results / "links" / "1x4.1.before.json"
    path.parent.mkdir(parents=True)
    said = {"schema_version": SCHEMA, "lease_id": "1x4.1", "lease": "1x4", "when": "before"}
    path.write_text(json.dumps({**said, "document": RecordStore(results).share_document(found)}))
    return path


def test_what_is_read_back_has_the_models_of_what_was_measured(tmp_path: Path) -> None:
    keep(tmp_path, document())
    (found,) = read_link_measurements(tmp_path, RecordStore(tmp_path))
    assert (found["lease_id"], found["when"]) == ("1x4.1", "before")
    model = found["document"]["model"]["allreduce"]
    assert model["alpha_us"] == pytest.approx(ALPHA_S * 1e6, rel=1e-3)
    assert model["gb_per_s"] == pytest.approx(BYTES_PER_S / 1e9, rel=1e-3)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"document": "0"}', '{"lease_id": "1x4.1"}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    path = keep(tmp_path, document())
    path.write_text(content)
    with pytest.raises(RecordError, match=r"1x4\.1\.before\.json|shared/0"):
        read_link_measurements(tmp_path, RecordStore(tmp_path))


def test_without_any_there_are_none(tmp_path: Path) -> None:
    assert read_link_measurements(tmp_path, RecordStore(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "when"),
    [
        ({}, ()),
        ({"campaign.axes.workload": ["nano"]}, ("before",)),
        ({"campaign.axes.workload": ["nano"], "campaign.protocol.links": {"when": []}}, ()),
        ({"campaign.protocol.links": {"when": ["before", "after"]}}, ("before", "after")),
    ],
)
def test_links_are_measured_where_it_is_said_or_where_training_is(
    changes: dict[str, Any], when: tuple[str, ...], tmp_path: Path
) -> None:
    assert list_measurement_times(load(tmp_path, changes)) == when


def test_only_links_that_records_were_measured_over_are_collected(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    store = fill(campaign, tmp_path / "results")
    used = f"{campaign.configurations[0].name}.c1.1"
    for lease in (used, "never-used.1"):
        said = {"schema_version": SCHEMA, "lease_id": lease, "lease": lease, "when": "before"}
        write(
            tmp_path / "results" / "links" / f"{lease}.before.json",
            {**said, "document": store.share_document(document())},
        )
    (found,) = read_campaign_results(campaign, tmp_path / "results").links
    assert (found["lease_id"], found["configuration"]) == (used, campaign.configurations[0].name)
