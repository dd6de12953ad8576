"""The predicted studies: their files plan, every claim that they are to predict has cells, and none of these is an input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from campaign.config.published_file import Claim, load
from campaign.config.resolve import Campaign, load_campaign
from campaign.documents.cell import Cell
from campaign.documents.record import Record, RecordedCell
from campaign.insight.published import INPUT, NOT_HERE
from campaign.insight.published.claims import held_against
from campaign.plan.matrix import expand
from campaign.plan.plan import lease_name
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.io import Tables
from campaign.tables.report_context import claims_used
from campaign.tables.runs import runs_table

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ("falcon", "faster", "bitfusion")
# What no prediction of times says anything of.
_UNSAID = ("link", "host_to_device", "planned_runs", "outcome", "largest_batch")
_NOT_PREDICTED = {
    "falcon.f10.gpu_util",
    "falcon.f10.util_dir",
    "falcon.f10.memaccess_dir",
    "falcon.f13.cpu_dir",
}


@cache
def campaign(name: str) -> Campaign:
    return load_campaign(ROOT / "config" / "campaigns" / f"{name}-predicted.yaml")


@cache
def held(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The claims beside a campaign all of whose devices are equally fast."""
    of = campaign(name)
    cells = expand(of).cells
    runs = runs_table([_record(of, cell, n) for cell in cells for n in (1, 2)])
    planned = [CellPlan(cell, 2, lease_name(of.protocol, cell)) for cell in cells]
    inputs = claims_used({key: of.document()[key] for key in ("system", "workloads")})
    context = {"campaign": {"name": of.name, "protocol": {"repetitions": 2, "seed": 1}}, "inputs": inputs}
    tables = Tables(runs, cells_table(planned, runs), [], [], context)
    return {claim["id"]: claim for claim in held_against([load(name)], tables)["claims"]}


def _record(of: Campaign, cell: Cell, repetition: int) -> Record:
    document = {
        "cell_id": cell.id,
        "repetition": repetition,
        "cell": RecordedCell.of(cell),
        "specification": {},
        "status": "ok",
        "failure": None,
        "started": 1_700_000_000.0 + 100 * repetition,
        "ended": 1_700_000_050.0 + 100 * repetition,
        "lease_id": f"lease-{cell.configuration.name}.c{repetition}",
        "hosts": ("host1",),
        "composition": "c" * 20,
        "environment": "e" * 20,
        "campaign": "a" * 20,
        "throughput_per_s": 100.0 * cell.configuration.ranks * cell.batch,
        "metrics": {**of.workloads[cell.workload].summary(), "communication_bytes_per_step": 1e9},
        "log": "",
    }
    return Record.model_validate(document)


def claims(name: str) -> dict[str, Claim]:
    return {claim.id: claim for claim in load(name).claims}


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_that_can_be_predicted_has_cells_or_is_an_input(name: str) -> None:
    expected = {
        of
        for of, claim in claims(name).items()
        if claim.here and not claim.here.compute.startswith(_UNSAID) and of not in _NOT_PREDICTED
    }
    reasons = {
        of: claim["reason"] for of, claim in held(name).items() if of in expected and claim["verdict"] == NOT_HERE
    }
    assert not reasons


@pytest.mark.parametrize("name", STUDIES)
def test_inputs_are_claims_and_have_no_verdict(name: str) -> None:
    used = claims_used(campaign(name).document()["workloads"]) | claims_used(campaign(name).document()["system"])
    assert set(used) <= {of for study in STUDIES for of in claims(study)}
    assert {of for of, claim in held(name).items() if claim["verdict"] == INPUT} == set(used) & set(claims(name))


def quantities(document: Mapping[str, Any], name: str) -> Iterator[float]:
    """The numbers that files of a campaign take as given, and what follows from them at once.

    Rates of links in one and in both directions, of storage, step times, samples per second, and ratios of step times of one
    batch by precision and by device.
    """
    system = document["system"]
    for rate in [*system["links"].values(), *system["storage"].values()]:
        if rate and rate.get("gb_per_s"):
            yield from (rate["gb_per_s"], 2 * rate["gb_per_s"])
    for workload in document["workloads"].values():
        rows = workload["compute"]
        for row in rows:
            yield from (row["seconds"], row["batch"] / row["seconds"])
            for other in rows:
                if other is not row and other["batch"] == row["batch"]:
                    yield from (other["seconds"] / row["seconds"], 100 * (other["seconds"] / row["seconds"] - 1))


def judged_inputs(name: str, document: Mapping[str, Any]) -> set[str]:
    """Claims that are judged although their printed value is among the inputs."""
    used = claims_used({key: document[key] for key in ("system", "workloads")})
    known = list(quantities(document, name))
    found = set()
    for of, claim in claims(name).items():
        values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
        # 4, 16 or 20 may stand for anything.
        printed = [value for value in values if isinstance(value, float) and re.search(r"\.\d*[1-9]", str(value))]
        if of not in used and claim.here and any(abs(given / value - 1) < 2e-3 for value in printed for given in known):
            found.add(of)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_no_claim_that_is_judged_is_an_input(name: str) -> None:
    assert not judged_inputs(name, campaign(name).document())


def test_an_input_that_does_not_say_so_is_found() -> None:
    falcon, faster = campaign("falcon").document(), campaign("faster").document()
    del falcon["system"]["links"]["fabric"]["uses"]
    assert judged_inputs("falcon", falcon) == {"falcon.t4.bw.FF"}
    for row in faster["workloads"]["bert-large-a100"]["compute"]:
        row.pop("uses")
    assert {f"faster.f8.fp16.1gpu.bs{batch}" for batch in (4, 8, 16)} <= judged_inputs("faster", faster)


@pytest.mark.parametrize("name", STUDIES)
def test_every_input_says_where_it_stands(name: str) -> None:
    document = campaign(name).document()
    rows = [row for workload in document["workloads"].values() for row in workload["compute"]]
    rates = [link for link in document["system"]["links"].values() if link]
    rates += document["system"]["storage"].values()
    assert all(each["source"] for each in (*rows, *rates))
