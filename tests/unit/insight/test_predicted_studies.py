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
from campaign.insight.prediction import predict
from campaign.insight.published import INPUT, NOT_HERE
from campaign.insight.published.claims import with_claims
from campaign.tables.report_context import claims_used

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ("falcon", "faster", "bitfusion")
# What no prediction says anything of.
_UNSAID = ("link", "host_to_device", "planned_runs")
_NOT_PREDICTED = {
    "falcon.f10.memaccess_dir",
    "faster.f2.grace_2gpu",  # of two systems: faster-grace
}


@cache
def campaign(name: str) -> Campaign:
    return load_campaign(ROOT / "config" / "campaigns" / f"{name}-predicted.yaml")


@cache
def held(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The claims beside a prediction of few draws."""
    said = with_claims(predict(campaign(name), count=40).tables)
    return {claim["id"]: claim for claim in said["published"]["claims"]}


def test_composed_and_traditional_hosts_are_compared_in_one_plan() -> None:
    of = load_campaign(ROOT / "config" / "campaigns" / "faster-grace.yaml")
    claims = with_claims(predict(of, count=40).tables)["published"]["claims"]
    found = next(claim for claim in claims if claim["id"] == "faster.f2.grace_2gpu")
    assert found["verdict"] in ("agrees", "differs")
    assert found["other"] == []


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
    for each in system["parameters"].values():
        yield from (each[end] * scale for end in ("low", "high") for scale in (1.0, 1e-9, 2e-9, 100.0))
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
    falcon = campaign("falcon").document()
    del falcon["system"]["links"]["fabric"]["uses"]
    for name in ("rate[bridge]", "rate[mixed]"):
        del falcon["system"]["parameters"][name]["uses"]
    assert judged_inputs("falcon", falcon) == {"falcon.t4.bw.FF", "falcon.t4.bw.FL"}


@pytest.mark.parametrize("name", STUDIES)
def test_every_input_says_where_it_stands(name: str) -> None:
    document = campaign(name).document()
    rows = [row for workload in document["workloads"].values() for row in workload["compute"]]
    rates = [link for link in document["system"]["links"].values() if link]
    rates += [*document["system"]["storage"].values(), *document["system"]["parameters"].values()]
    assert all(each["source"] for each in (*rows, *rates))
