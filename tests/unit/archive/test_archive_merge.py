"""Merging: a campaign measured in parts, on several machines, or with other axes, is whole again; another campaign is refused."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.archive import merge_archives
from campaign.archive.merge_archives import WHY_LEFT_OUT, merge, united
from campaign.archive.open_results import tables_from
from campaign.archive.read import check, opened
from campaign.archive.write import write_archive
from campaign.config.resolve import Campaign, from_document
from campaign.documents.readings import Reading, Readings, keep
from campaign.documents.record import Record, Store
from campaign.errors import ArchiveError
from campaign.plan.matrix import expand
from tests import campaign_records
from tests.unit.archive import archive_data

Make = Callable[..., Path]
Change = Callable[[Path], None]
KEEP: Change = lambda results: None  # noqa: E731


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], tuple[Campaign, Path]]:
    """A campaign with changes, and its results, which are not to be changed."""
    known: dict[str, tuple[Campaign, Path]] = {}

    def made(changes: Mapping[str, Any]) -> tuple[Campaign, Path]:
        key = json.dumps(changes)
        if key not in known:
            root = tmp_path_factory.mktemp("filled")
            campaign = archive_data.campaign_in(root / "config", changes)
            known[key] = campaign, archive_data.fill(campaign, root / "results")
        return known[key]

    return made


@pytest.fixture
def make(filled: Callable[[Mapping[str, Any]], tuple[Campaign, Path]], tmp_path: Path) -> Make:
    """Archives of the campaign with changes to its files, and to its results."""

    def made(
        name: str, changes: Mapping[str, Any] | None = None, change: Change = KEEP, *, tables: bool = False
    ) -> Path:
        campaign, results = filled(changes or {})
        own = Path(shutil.copytree(results, tmp_path / name / "results"))
        change(own)
        if not tables:  # merging makes them anyway
            (own / "tables").mkdir()
            (own / "tables" / "runs.parquet").write_bytes(b"")
        write_archive(campaign, own, tmp_path / f"{name}.zip")
        return tmp_path / f"{name}.zip"

    return made


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at records only: making the tables takes most of the time."""
    monkeypatch.setattr(merge_archives, "remade", lambda *arguments: None)


def records(path: Path) -> dict[tuple[str, int], Record]:
    with opened(path) as archive:
        return {record.key: record for record in Store(archive.directory)}


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def without(*repetitions: int) -> Change:
    def change(results: Path) -> None:
        for path in (results / "records").rglob("*.json"):
            if int(path.name.split(".")[1]) in repetitions:
                path.unlink()

    return change


def test_parts_of_one_campaign_are_the_whole_one(make: Make, tmp_path: Path) -> None:
    whole = make("whole")
    merged = merge(tmp_path / "m.zip", [make("first", change=without(2)), make("second", change=without(1))])
    assert (merged.superseded, merged.renamed, merged.taken) == ((), {}, ())
    assert records(tmp_path / "m.zip") == records(whole)
    assert check(tmp_path / "m.zip")[1] == []
    left, right = tables_from(tmp_path / "m.zip"), tables_from(whole)
    assert left.cells.equals(right.cells)
    assert left.runs.equals(right.runs)
    assert left.leases == right.leases


def test_merging_an_archive_with_itself_changes_nothing(make: Make, tmp_path: Path) -> None:
    whole = make("whole", tables=True)
    merge(tmp_path / "m.zip", [whole, whole])
    assert (tmp_path / "m.zip").read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("no_tables")
def test_another_repetition_is_a_part(make: Make, tmp_path: Path) -> None:
    merge(tmp_path / "m.zip", [make("two"), make("three", {"campaign.protocol.repetitions": 3}, without(1, 2))])
    with opened(tmp_path / "m.zip") as archive:
        assert archive.campaign.protocol.repetitions == 3
    assert len(records(tmp_path / "m.zip")) == 31 + 16


@pytest.mark.usefixtures("no_tables")
def test_later_readings_of_all_parts_are_kept(make: Make, tmp_path: Path) -> None:
    """Also of one second: records of each part say what its own reading said."""

    def read_again(results: Path) -> None:
        keys = sorted(Store(results).index(implied=False))
        found = [Store(results).read_measured(*key) for key in keys]
        runs = {
            f"{each.cell_id}.{each.repetition}": Reading(started=each.started, record={"throughput_per_s": 7.0})
            for each in found
        }
        keep(results, Readings(made=1e9, version="0", workloads={}, runs=runs))

    parts = [make(name, change=lambda r, n=n: (without(n)(r), read_again(r))) for name, n in (("a", 1), ("b", 2))]
    merge(tmp_path / "m.zip", parts)
    started = [record for record in records(tmp_path / "m.zip").values() if not record.implied_by]
    assert {record.throughput_per_s for record in started} == {7.0}
    assert sum(name.startswith("readings/") for name in names(tmp_path / "m.zip")) == 2


@pytest.mark.usefixtures("no_tables")
def test_the_merged_archive_may_take_the_place_of_a_part(make: Make, tmp_path: Path) -> None:
    first, second = make("first", change=without(2)), make("second", change=without(1))
    assert merge(first, [first, second]).written.records == 31
    other = make("other")
    with pytest.raises(ArchiveError, match="already exists and is not one of the archives"):
        merge(other, [first, second])


def slower(results: Path) -> None:
    path = min((results / "records").rglob("*.2.json"))
    document = json.loads(path.read_bytes())
    path.write_text(
        Record.model_validate({**document, "checksum": "", "throughput_per_s": 1.5}).model_dump_json() + "\n"
    )


@pytest.mark.usefixtures("no_tables")
def test_records_that_differ_are_named_or_the_first_ones_count(make: Make, tmp_path: Path) -> None:
    first, second = make("first"), make("second", change=slower)
    with pytest.raises(ArchiveError) as caught:
        merge(tmp_path / "m.zip", [first, second])
    assert "hold different records of 1 runs: steps on 1x1-" in str(caught.value)
    assert re.search(
        r"repetition 2: ok \(\d+\.\d+ per s\) against ok \(1\.5 per s\), 'throughput_per_s' is [\d.]+ against 1\.5",
        str(caught.value),
    )
    assert not (tmp_path / "m.zip").exists()
    merged = merge(tmp_path / "m.zip", [first, second], "first")
    assert records(tmp_path / "m.zip") == records(first)
    (name,) = merged.superseded
    assert [each for each in names(tmp_path / "m.zip") if each.startswith("superseded/") and each.endswith(name)]
    merge(tmp_path / "n.zip", [second, first], "first")
    assert records(tmp_path / "n.zip") == records(second)


def later(results: Path) -> None:
    path = min((results / "records").rglob("*.2.json"))
    document = json.loads(path.read_bytes())
    path.write_text(
        Record.model_validate({**document, "checksum": "", "ended": document["ended"] + 1}).model_dump_json() + "\n"
    )


@pytest.mark.usefixtures("no_tables")
def test_records_that_ended_alike_are_told_apart_by_the_first_key_that_differs(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"repetition 2: 'ended' is [\d.]+ against [\d.]+\. With"):
        merge(tmp_path / "m.zip", [make("first"), make("second", change=later)])


def other_machine(results: Path) -> None:
    """The same paths, so the same ids of leases; other times, and other runs."""
    without(1)(results)
    for path in (results / "leases").glob("*.json"):
        document = json.loads(path.read_bytes())
        path.write_text(json.dumps({**document, "requested_s": document["requested_s"] + 5000}))


def test_leases_of_two_machines_are_told_apart(make: Make, tmp_path: Path) -> None:
    merged = merge(tmp_path / "m.zip", [make("here", change=without(2)), make("there", change=other_machine)])
    lease = "small.1x1-local.0a1b2c.1"
    assert merged.renamed[lease] == f"{lease}.part2"
    found = records(tmp_path / "m.zip")
    leases = {
        (repetition, record.lease_id)
        for (_, repetition), record in found.items()
        if record.cell.configuration == "1x1-local"
    }
    assert leases == {(1, lease), (2, f"{lease}.part2")}
    tables = tables_from(tmp_path / "m.zip")
    asked = {each["lease_id"]: each["requested_s"] for each in tables.leases}
    assert asked[f"{lease}.part2"] == asked[lease] + 5000
    assert len(tables.links) == 2, "the same links were kept for both uses"
    assert check(tmp_path / "m.zip")[1] == []


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("again", [False, True])
def test_an_older_archive_does_not_bring_back_what_was_set_aside(make: Make, tmp_path: Path, again: bool) -> None:
    """again: whether the run has been measured again since."""

    def aside(results: Path) -> None:
        path = min((results / "records").rglob("*.1.json"))
        target = results / "superseded" / "20270101T000000" / path.relative_to(results)
        target.parent.mkdir(parents=True)
        content = path.read_bytes()
        shutil.move(path, target)
        if again:
            path.write_bytes(content)
            campaign_records.change(path)

    old, new = make("old"), make("new", change=aside)
    for number, order in enumerate(([old, new], [new, old])):
        merged = merge(tmp_path / f"{number}.zip", order)
        assert merged.written.records == (31 if again else 30)
        assert records(tmp_path / f"{number}.zip") == records(new)


@pytest.mark.usefixtures("no_tables")
def test_samples_go_with_the_record_that_counts(make: Make, tmp_path: Path) -> None:
    def no_samples(results: Path) -> None:
        shutil.rmtree(results / "telemetry")

    def differs(results: Path) -> None:
        (sampled,) = (results / "telemetry").rglob("*.parquet")
        path = results / "records" / sampled.parent.name / f"{sampled.stem}.json"
        document = json.loads(path.read_bytes())
        path.write_text(Record.model_validate({**document, "checksum": "", "started": 1.0}).model_dump_json() + "\n")

    merge(tmp_path / "m.zip", [make("a", change=no_samples), make("b", change=differs)], "first")
    assert not any(name.startswith("telemetry/") for name in names(tmp_path / "m.zip"))
    merge(tmp_path / "n.zip", [make("c", change=no_samples), make("d")])
    assert any(name.startswith("telemetry/") for name in names(tmp_path / "n.zip"))


@pytest.mark.usefixtures("no_tables")
def test_a_plan_of_a_part_is_no_plan_of_the_whole(make: Make, tmp_path: Path) -> None:
    def planned(word: str) -> Change:
        def change(results: Path) -> None:
            (results / "plan").mkdir()
            (results / "plan" / "plan.json").write_text(json.dumps({"plan": word}))

        return change

    first, same, other = make("a", change=planned("x")), make("b", change=planned("x")), make("c", change=planned("y"))
    assert merge(tmp_path / "m.zip", [first, same]).plan
    assert "plan/plan.json" in names(tmp_path / "m.zip")
    assert not merge(tmp_path / "n.zip", [first, other]).plan
    assert "plan/plan.json" not in names(tmp_path / "n.zip")


def test_other_axes_are_united_without_cells_that_nobody_asked_for(make: Make, tmp_path: Path) -> None:
    small = make("small", {"campaign.axes.batch": [1, 2], "campaign.configurations": [{"devices_per_host": [1, 2]}]})
    large = make("large", {"campaign.axes.batch": [4, 8], "campaign.title": "Another title"})
    merged = merge(tmp_path / "m.zip", [small, large])
    assert merged.taken == ("campaign.title",)
    with opened(tmp_path / "m.zip") as archive, opened(small) as one, opened(large) as other:
        cells = {cell.id for cell in expand(archive.campaign).cells}
        assert cells == {cell.id for part in (one, other) for cell in expand(part.campaign).cells}
        assert archive.campaign.file.axes.batch == (1, 2, 4, 8)
        (left_out,) = expand(archive.campaign).removed
    assert (left_out.why, left_out.cells) == (WHY_LEFT_OUT, 4)
    tables = tables_from(tmp_path / "m.zip")
    assert len(tables.cells) == 4 + 8
    assert set(tables.cells["state"]) >= {"measured", "implied"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"campaign.protocol.warmup_steps": 2}, r"campaign.protocol.warmup_steps \(1, 2\)"),
        ({"system.links": {"network": {"gb_per_s": 3.0}}}, "system.links.network"),
        ({"workloads.steps.options.size": 9}, r"workloads.steps.options.size \(8, 9\)"),
        ({"campaign.axes.options": {"size": [8, 9]}}, r"campaign.axes.options.size|axis 'size' is an axis of some"),
        ({"system.name": "bench", "campaign.protocol.seed": 5}, "campaign.protocol.seed"),
        (
            {"campaign.configurations": [{"name": "one", "devices_per_host": 1}]},
            "calls 'one' what is|name the shape alike",
        ),
    ],
)
def test_other_campaigns_are_refused_with_what_differs(
    make: Make, tmp_path: Path, changes: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(ArchiveError, match=words):
        merge(tmp_path / "m.zip", [make("a"), make("b", changes)])
    assert not (tmp_path / "m.zip").exists()


def test_a_part_that_is_damaged_is_named(make: Make, tmp_path: Path) -> None:
    good, bad = make("good"), make("bad")
    bad.write_bytes(bad.read_bytes()[:-100])
    with pytest.raises(ArchiveError, match=r"bad\.zip: is not a complete archive"):
        merge(tmp_path / "m.zip", [good, bad])


@pytest.mark.usefixtures("no_tables")
def test_archives_of_an_older_schema_merge(make: Make, tmp_path: Path) -> None:
    old = archive_data.ARCHIVES / "archive-1.zip"
    merged = merge(tmp_path / "m.zip", [old, make("new", {"campaign.axes.batch": [16]})])
    assert merged.written.records == 31 + 7
    assert set(records(old)) < set(records(tmp_path / "m.zip"))


_SUBSET = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4, unique=True)
_SHAPES = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2, unique=True)
_RULES = st.sampled_from(
    [[], [{"when": "batch == 8 and devices == 2", "why": "too large"}], [{"when": "batch < 4", "why": "small"}]]
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return archive_data.campaign_in(tmp_path_factory.mktemp("config")).document()


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.tuples(_SUBSET, _SHAPES, _RULES), min_size=2, max_size=3))
def test_united_campaigns_have_exactly_the_cells_of_their_parts(
    document: dict[str, Any], parts: list[tuple[list[int], list[int], list[dict[str, str]]]]
) -> None:
    campaigns: list[Campaign] = []
    for batches, devices, rules in parts:
        changed = json.loads(json.dumps(document))
        changed["campaign"]["axes"]["batch"] = batches
        changed["campaign"]["configurations"] = [{"devices_per_host": devices, "attach": ["local", "fabric"]}]
        changed["campaign"]["exclude"] = rules
        campaign = from_document(changed)
        try:
            expand(campaign)
        except Exception:
            continue  # every cell is excluded: no campaign
        campaigns.append(campaign)
    if len(campaigns) < 2:
        return
    campaign, _ = united(campaigns, [str(number) for number in range(len(campaigns))])
    wanted = {cell.id for each in campaigns for cell in expand(each).cells}
    assert {cell.id for cell in expand(campaign).cells} == wanted
