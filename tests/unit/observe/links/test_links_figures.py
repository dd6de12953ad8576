"""What the figures of links say: the rates that were planted, one measurement a configuration, and what was not measured."""

from __future__ import annotations

import copy
import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from campaign.analysis.statistics import verdict
from campaign.report.figure import Drawing, FigureData, load_figure
from campaign.report.link_selection import compare_link_kinds, format_size, select_shown_links
from tests.unit.observe.links import links_data


def draw(name: str, links: list[dict[str, Any]]) -> Drawing:
    none = pd.DataFrame()
    drawing: Drawing = load_figure(name).draw(FigureData(none, none, none, "local-4", {}, tuple(links)))
    return drawing


def test_matrices_say_how_local_and_fabric_compare() -> None:
    names = ("hybrid-4", "fabric-2x2", "local-1")
    drawing = draw("link_matrices", [each for each in links_data.links() if each["configuration"] in names])
    start = "Local links have "
    ratio = next(words for words in drawing.findings if words.startswith(start))
    assert float(ratio.removeprefix(start).split("×")[0]) == pytest.approx(3.0, rel=0.05)
    assert ratio.endswith("× the bandwidth of fabric links in hybrid-4 (one pair of devices, not tested).")
    slow = drawing.data[drawing.data["kind"] == "fabric + network"]
    assert slow["unidirectional_gb_per_s"].median() == pytest.approx(2.4, rel=0.02)
    assert slow["latency_us"].median() == pytest.approx(11.0, rel=0.02)
    # A configuration of one device has no pairs.
    assert "local-1" not in set(drawing.data["configuration"])
    assert ">FN<" in drawing.svg


def test_a_slow_pair_is_found_and_a_missing_one_is_a_gap() -> None:
    (only,) = [each for each in links_data.links() if each["configuration"] == "fabric-4"]
    rates = only["document"]["matrices"]["unidirectional_gb_per_s"]
    rates[2][1] = 6.0
    rates[0][3] = None
    only["document"]["problems"] = ["nvbandwidth: not installed", "osu: not installed"]
    drawing = draw("link_matrices", [only])
    assert "host1.gpu2 to host1.gpu1 in fabric-4: 6.00 GB/s, 50" in drawing.findings[0]
    assert ("fabric-4", "host1.gpu0", "host1.gpu3", "fabric", "–") in [row[:5] for row in drawing.rows]
    ElementTree.fromstring(drawing.svg)
    assert (
        "The measurement had problems: fabric-4: nvbandwidth: not installed, and 1 further problem." in drawing.caption
    )


def test_many_devices_are_drawn_without_numbers() -> None:
    many = {**links_data.links()[0], "document": links_data.links_document((4, 8), (4, 4), sizes=(8, 4096, 2**20))}
    drawing = draw("link_matrices", [many])
    assert ">FN<" not in drawing.svg
    assert len(drawing.data) == 20 * 19


def test_the_model_of_each_configuration_is_in_the_table() -> None:
    drawing = draw("allreduce", links_data.links())
    rows = drawing.data.set_index("configuration")
    assert list(rows["ranks"]) == [4, 4, 4, 4, 8]
    assert rows.loc["local-4", "gb_per_s"] == pytest.approx(36.0, rel=0.05)
    assert rows.loc["fabric-2x2", "gb_per_s"] == pytest.approx(2.4, rel=0.05)
    assert rows["alpha_us"].median() == pytest.approx(10.0, rel=0.1)
    assert drawing.findings[0].startswith("local-4 reaches 15.06× the all-reduce bandwidth of fabric-2x2")
    assert all(row[-1] == "256 MiB" for row in drawing.rows)


def test_sizes_too_few_for_a_model_are_drawn_without_one() -> None:
    few = {**links_data.links()[0], "document": links_data.links_document((2, 0), sizes=(8,))}
    drawing = draw("allreduce", [few])
    assert drawing.svg
    assert "–" in drawing.rows[0]
    assert "nan" not in drawing.alt


def test_the_measurement_before_the_runs_is_shown() -> None:
    uses = [
        {"configuration": "a", "when": when, "document": number}
        for number, when in enumerate(("after", "before", "after"))
    ]
    assert [each.document for each in select_shown_links(uses)] == [1]
    assert [each.document for each in select_shown_links(uses[:1])] == [0]


def test_sizes_are_said_in_binary_units() -> None:
    assert [format_size(size) for size in (8, 4096, 65536, 2**20, 2**28)] == [
        "8 B",
        "4 KiB",
        "64 KiB",
        "1 MiB",
        "256 MiB",
    ]


def test_messages_that_are_all_latency_tell_no_bandwidth() -> None:
    found = links_data.links_document((2, 0), sizes=(8, 4096))
    drawing = draw(
        "link_matrices", [{"configuration": "short", "lease_id": "s.1", "when": "before", "document": found}]
    )
    assert drawing.data["unidirectional_gb_per_s"].isna().all()
    assert drawing.data["latency_us"].notna().all()
    assert drawing.findings == ("No bandwidth could be measured.",)
    assert "No bandwidth for short: only messages below 64 KiB" in drawing.caption


def test_all_reduce_is_compared_at_one_size_only() -> None:
    long, short = (each for each in links_data.links() if each["configuration"] in ("local-4", "fabric-4"))
    few = links_data.links_document((0, 4), sizes=(8, 4096))
    (said,) = draw("allreduce", [long, {**short, "document": few}]).findings
    assert re.fullmatch(r"local-4 reaches \S+ GB/s on 4 devices at 64 MiB\.", said)
    assert "× " not in said


def test_all_reduce_of_two_configurations_is_tested_where_both_were_composed_again() -> None:
    once = [each for each in links_data.links() if each["configuration"] in ("local-4", "fabric-2x2")]
    (alone,) = draw("allreduce", once).findings
    conditions = "on 4 devices at 64 MiB"
    assert alone == (
        f"local-4 reaches 15.06× the all-reduce bandwidth of fabric-2x2 {conditions} ({verdict.NOT_TESTED_SINGLE_RUN})."
    )
    again = [
        {
            **each,
            "lease_id": f"{each['lease_id']}.c{n}",
            "document": {
                **each["document"],
                "allreduce": {
                    **each["document"]["allreduce"],
                    "busbw_gb_per_s": [
                        rate * (1 + 0.01 * n) for rate in each["document"]["allreduce"]["busbw_gb_per_s"]
                    ],
                },
            },
        }
        for each in once
        for n in (1, 2, 3)
    ]
    (said,) = draw("allreduce", again).findings
    assert said.startswith("local-4 reaches 15.06× [14.")
    assert said.endswith(f"] the all-reduce bandwidth of fabric-2x2 {conditions}.")
    assert "not tested" not in said


def test_kinds_of_links_are_compared_over_compositions_where_there_are_several() -> None:
    document = links_data.links_document((8, 4), sizes=(8, 4096, 2**20))
    one = {"configuration": "hybrid-8", "lease_id": "h", "when": "before", "document": document}
    again = [
        {**one, "lease_id": f"{one['lease_id']}.c{n}", "document": copy.deepcopy(one["document"])} for n in (1, 2, 3)
    ]
    for n, each in enumerate(again):
        matrix, kinds = each["document"]["matrices"]["unidirectional_gb_per_s"], each["document"]["kinds"]
        for row, ways in zip(matrix, kinds, strict=True):
            row[:] = [rate and rate * (1 + 0.2 * n * (kind == "fabric")) for rate, kind in zip(row, ways, strict=True)]
    said = compare_link_kinds(again, "hybrid-8", ("local", "fabric"))
    assert "within 3 compositions" in said
    alone = compare_link_kinds(again[:1], "hybrid-8", ("local", "fabric"))
    # Compositions differ more than pairs of one composition do.
    assert _width(said) > 3 * _width(alone)


def _width(said: str) -> float:
    low, high = said.split("[")[1].split("]")[0].replace("×", "").split(" to ")
    return float(high) - float(low)
