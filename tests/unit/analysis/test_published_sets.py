"""The sets of published claims: whole, closed, and consistent in themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.analysis.published import claims
from campaign.common.errors import ConfigError
from campaign.spec import published_file
from campaign.spec.published_file import Claim, is_check_satisfied, list_set_names, load_set

# Every number and every checkable statement that the three documents print.
CLAIMS = {"bitfusion": 11, "falcon": 48, "faster": 29}
MEASURABLE = {"bitfusion": 5, "falcon": 34, "faster": 27}


def test_there_is_a_set_for_each_document() -> None:
    assert list_set_names() == sorted(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_no_claim_is_lost(name: str) -> None:
    reference = load_set(name)
    assert len(reference.claims) == CLAIMS[name]
    assert sum(claim.here is not None for claim in reference.claims) == MEASURABLE[name]
    assert all(claim.id.startswith(f"{name}.") for claim in reference.claims)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_printed_number_is_accepted_by_its_own_interval(name: str) -> None:
    for claim in load_set(name).claims:
        low, high = claim.accept
        for value in claim.value if isinstance(claim.value, tuple) else (claim.value,):
            if isinstance(value, float):
                assert low is None or low <= value, claim.id
                assert high is None or value <= high, claim.id


def test_arithmetic_inside_the_documents_holds() -> None:
    claims = {claim.id: claim for claim in load_set("falcon").claims}
    checks = load_set("falcon").checks
    assert len(checks) == 5
    assert all(is_check_satisfied(check, claims) for check in checks)
    wrong = claims["falcon.t4.bw.LL"].model_copy(update={"value": 60.0})
    assert not is_check_satisfied(checks[0], {**claims, wrong.id: wrong})


def test_figures_that_claims_name_are_those_of_a_report() -> None:
    from campaign.report.figure import list_figure_names

    anchors = {name.replace("_", "-") for name in list_figure_names()}
    named = {claim.figure for name in CLAIMS for claim in load_set(name).claims} - {""}
    assert named <= anchors


def _set(**changes: Any) -> dict[str, Any]:
    claim = {
        "id": "own.one",
        "where": "Table 1",
        "quantity": "throughput_drop",
        "unit": "percent",
        "conditions": {},
        "value": 5,
        "accept": [4.5, 5.5],
        "kind": "ratio",
        "basis": "rounding",
        "says": "two hosts lose 5 %",
        "here": {"compute": "throughput_drop_pct", "of": "hosts == 2", "against": "hosts == 1", "vary": ["hosts"]},
    }
    document = {"title": "Own", "authors": "A. Author"}
    return {"name": "own", "document": document, "claims": [{**claim, **changes}]}


def test_a_set_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(_set()))
    assert load_set("own.yaml", tmp_path).claims[0].value == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valu": 5}, "claims.0.valu"),
        ({"kind": "guess"}, "claims.0.kind"),
        ({"accept": [6, 4]}, "has a lower bound above its upper bound"),
        ({"not_here": "why"}, "either `here` or `not_here`"),
        ({"here": None}, "either `here` or `not_here`"),
        ({"here": {"compute": "throughput_ratio", "of": "host == 2"}}, "which is not an axis"),
        (
            {"here": {"compute": "throughput_ratio", "models": ["AlexNet"]}},
            "own.one: unknown models",
        ),
        ({"here": {"compute": "throughput_ratio", "vary": ["colour"]}}, "own.one: unknown axes: colour"),
    ],
)
def test_what_is_wrong_in_a_set_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match="own: ") as error:
        published_file.from_document(_set(**changes), "own")
    assert words in str(error.value)


def test_sets_in_results_may_have_keys_of_predictions_and_files_may_not() -> None:
    now = load_set("falcon").model_dump(mode="json")
    before = {
        **now,
        "claims": [{**each, "by_construction": ""} for each in now["claims"]],
        "models": {name: {**each, "replayed": ["x"]} for name, each in now["models"].items()},
    }
    assert published_file.from_document(before, "references of the campaign") == load_set("falcon")
    with pytest.raises(ConfigError, match="by_construction"):
        published_file.from_document(before, "claims.yaml", lambda *keys, name: ".".join(map(str, keys)))


def test_claims_that_stand_twice_are_named() -> None:
    twice = _set()
    twice["claims"] *= 2
    with pytest.raises(ConfigError, match=r"the ids of claims must be unique; duplicates: own\.one"):
        published_file.from_document(twice, "own")


def test_an_unknown_set_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="bitfusion, falcon, faster, or give the path"):
        load_set("falcn")


@pytest.mark.parametrize(
    ("name", "told", "conditions"),
    [
        (
            "falcon.t4.bw.FL",
            "bandwidth between a fabric and a local GPU, sum of both directions: 19.64 GB/s",
            "Falcon to local, PCIe 4.0",
        ),
        (
            "falcon.f11.small_vision",
            "MobileNetV2 and ResNet-50 train less than 5 % slower with hybrid or fabric GPUs",
            "MobileNetV2 and ResNet-50, Falcon GPUs and hybrid GPUs, against local GPUs",
        ),
        (
            "falcon.f12.ratio.mobilenet",
            "BERT-large causes about 19 times the PCIe traffic of MobileNetV2",
            "BERT-large over MobileNetV2",
        ),
        (
            "falcon.f16.sharded_batch",
            "sharding raises the largest batch of BERT-large from 6 to 10 a GPU",
            "BERT-large, V100 16GB, from 6 to 10, option sharded",
        ),
        (
            "faster.f8.fp16.12gpu.bs8",
            "FP16 is 1.78 times as fast as TF32 on 12 GPUs at batch 8",
            "BERT-Large, A100 40GB, 12 devices, 1 host, batch 8",
        ),
        (
            "faster.f7.linear",
            "BERT-Large scales near linearly up to 16 GPUs; read as an efficiency of 80 % or more, as the dip at 14 is part of it",
            "BERT-Large, TF32, batch 4, 8 and 16",
        ),
    ],
)
def test_claims_and_their_conditions_are_told_in_words(name: str, told: str, conditions: str) -> None:
    claim = next(each for each in load_set(name.partition(".")[0]).claims if each.id == name)
    assert claims.describe_claim(claim) == told
    assert claims.describe_conditions(claim.conditions) == conditions


def test_no_key_of_a_set_shows_in_its_conditions() -> None:
    known = [
        claims.describe_conditions(claim.conditions) for name in CLAIMS for claim in load_set(name).claims if claim.here
    ]
    assert not [each for each in known if re.search(r"_|\bnodes?\b|\bgpus?\b|falcon|num |den |[a-z](GPUs|NVMe)", each)]


def test_every_claim_says_itself_in_words() -> None:
    known: list[Claim] = [claim for name in CLAIMS for claim in load_set(name).claims]
    assert all(len(claim.says) > 8 for claim in known)


def test_a_mistake_in_a_set_of_ones_own_is_named_with_its_line(tmp_path: Path) -> None:
    text = "schema_version: published/1\nname: own\ndocument: {title: T, authors: A}\nclaims:\n  - id: own.one\n    says: 3\n"
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"own.yaml:6: claims.0.says: "):
        load_set("own.yaml", tmp_path)
