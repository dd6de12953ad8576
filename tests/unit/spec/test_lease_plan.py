"""The plan of a lease as a document: whole, readable again, and refused when somebody edited it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import CampaignError, ConfigError, FabricError, HostFailed, LaunchError
from campaign.common.files import hash_document
from campaign.common.paths import Results
from campaign.fabrics.errors import Busy
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import campaign_part_from_lease_plan
from campaign.plan.matrix import build_specification, expand_matrix, hash_specification
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.lease_plan import LeasePlan, read_lease_plan
from tests.campaign_files import load
from tests.planned_leases import plans_of, written_plan


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return load(tmp_path)


@pytest.fixture
def path(campaign: Campaign, tmp_path: Path) -> Path:
    return written_plan(campaign, Results(tmp_path / "results", campaign.name), "1x1-local.c1")


def test_it_is_read_as_it_was_written(campaign: Campaign, path: Path) -> None:
    document = read_lease_plan(path)
    assert document.format_text() == path.read_text()
    assert document.model_copy(update={"checksum": ""}) == plans_of(campaign)["1x1-local.c1"]
    assert path.name == "1x1-local.c1.json"


def test_it_says_all_that_the_campaign_says_of_the_lease(campaign: Campaign, path: Path) -> None:
    document = read_lease_plan(path)
    cells = [cell for cell in expand_matrix(campaign).cells if cell.configuration.name == "1x1-local"]
    assert list(document.work_cells) == cells
    for cell in cells:
        assert document.specification(cell) == build_specification(campaign, cell)
        assert hash_specification(document.specification(cell)) == cell.id
    for planned in document.cells:
        assert hash_document(planned.specification) == planned.id
        batches = [batch for batch, _ in document.batches[planned.memory_key]]
        assert planned.batch in batches
    assert campaign_part_from_lease_plan(document).to_document() == campaign.to_document()
    assert hash_document(document.campaign_as_used) == document.campaign_hash


def test_the_name_follows_from_what_is_measured_and_not_from_its_forecast(campaign: Campaign, path: Path) -> None:
    document = read_lease_plan(path)
    assert document.forecast is not None
    longer = document.forecast.model_copy(update={"expected_s": 1e6})
    assert document.model_copy(update={"forecast": longer}).digest == document.digest
    for changes in ({"slurm": {"partition": "gpu"}}, {"run_set": "0" * 12}, {"campaign_hash": "0" * 20}):
        assert document.model_copy(update=changes).digest != document.digest


def _edited(change: Any) -> Any:
    def edit(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_edited(lambda d: d["cells"][0].update(batch=99)), "was edited or is incomplete .its checksum"),
        (_edited(lambda d: d["campaign_as_used"]["system"].update(name="other")), "its checksum does not match"),
        (_edited(lambda d: d.pop("cells")), "its checksum does not match"),
        (
            _edited(lambda d: d.update(schema_version="lease-plan/9")),
            "schema_version is 'lease-plan/9' instead of 'lease-plan/1'",
        ),
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: "[]", "schema_version is None"),
    ],
)
def test_one_that_was_edited_is_refused_with_what_to_do(path: Path, edit: Any, words: str) -> None:
    path.write_text(edit(path.read_text()))
    with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}: .*{words}.*'campaign plan --write'"):
        read_lease_plan(path)


def test_one_of_a_key_that_is_not_known_is_refused(path: Path) -> None:
    document = LeasePlan.model_validate_json(path.read_text()).model_dump(mode="json") | {"colour": "red"}
    document["checksum"] = hash_document({name: value for name, value in document.items() if name != "checksum"})
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="colour: Extra inputs are not permitted"):
        read_lease_plan(path)


def test_one_that_is_not_there_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'campaign plan --write' writes the plans of all leases"):
        read_lease_plan(tmp_path / "gone.json")


def test_writing_a_plan_again_leaves_equal_documents_alone(campaign: Campaign, tmp_path: Path) -> None:
    results = Results(tmp_path / "results", campaign.name)
    plan = read_plan(PlanRequest(campaign.path, results.root))
    assert not results.root.exists()  # planning writes nothing
    written = write_plan(plan, results)
    documents = [path for path in written if path.parent == results.lease_plans]
    assert [read_lease_plan(path).lease for path in documents] == [lease.name for lease in plan.leases]
    first = {path: read_lease_plan(path).token for path in documents}
    write_plan(plan, results)
    # Nothing has a record: each has a new token, so that Snakemake measures it.
    assert not {read_lease_plan(path).token for path in documents} & set(first.values())
    before = {path: path.stat().st_ino for path in written}
    write_plan(plan, results, ())
    assert {path: path.stat().st_ino for path in written} == before
    listed = json.loads((results.plan / "plan.json").read_text())["leases"]
    assert [results.plan / lease["document"] for lease in listed] == documents


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HostFailed("gone", {"host1": "down"}), HostFailed),
        (LaunchError("no srun"), LaunchError),
        (Busy("later", ("host1",)), FabricError),
        (None, None),
    ],
)
def test_what_a_driver_reports_passes_through_json(
    error: CampaignError | None, kind: type[CampaignError] | None
) -> None:
    told = json.loads(json.dumps(DriverResult([("a" * 20, 2)], "use.1", error).document()))
    result = DriverResult.from_document(told)
    assert (result.measured, result.use) == ([("a" * 20, 2)], "use.1")
    if error is None or kind is None:
        assert result.error is None
    else:
        assert type(result.error) is kind
        assert str(result.error) == str(error)
        assert getattr(result.error, "hosts", None) == getattr(error, "hosts", None)


def test_what_a_driver_is_asked_for_passes_through_json() -> None:
    request = DriverRequest("/p.json", "/results", "c", "l", "c.l.1", {"hosts": []}, ("1 device less",), "a1", "b2")
    assert DriverRequest.from_document(json.loads(json.dumps(request.document()))) == request
