"""The journal of a lease, and who owns it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common.errors import FabricError
from campaign.common.files import write_json
from campaign.common.paths import Results
from campaign.fabrics.errors import Conflict
from campaign.lease.campaign_leases import determine_use_id, make_lease_document
from campaign.lease.journal import TRANSITIONS, Journal, LeaseOwnership, is_owned, list_journaled_leases


def begun(directory: Path) -> Journal:
    journal = Journal(directory, "one")
    journal.enter_state("PLANNED", campaign="demo", owner="me", requested={"hosts": 1})
    journal.enter_state("RESERVED", selected=["slot1"])
    return journal


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1))
def test_a_torn_last_line_loses_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    directory = tmp_path_factory.mktemp("journal")
    begun(directory).enter_state("COMPOSING")
    path = directory / "one.jsonl"
    whole = path.read_bytes()
    before_last = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: before_last + int(cut * (len(whole) - 2 - before_last))])

    heir = Journal(directory, "one")
    assert heir.state == "RESERVED"
    heir.enter_state("COMPOSING")
    assert Journal(directory, "one").state == "COMPOSING"
    assert heir.make_document()["selected"] == ["slot1"]


def test_every_line_is_whole_json_with_its_time(tmp_path: Path) -> None:
    begun(tmp_path).add_facts(operation="compose", outcome="ok", duration_s=0.1)
    entries = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert [entry.get("state") for entry in entries] == ["PLANNED", "RESERVED", None]
    assert all(entry["time_s"] > 1e9 for entry in entries)


def test_states_follow_each_other_as_the_machine_allows(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    with pytest.raises(FabricError, match="RESERVED cannot become READY"):
        journal.enter_state("READY")
    assert Journal(tmp_path, "one").state == "RESERVED"


def test_every_state_can_end() -> None:
    ends = {"RELEASED"}
    while grown := {state for state, after in TRANSITIONS.items() if after & ends and state is not None} - ends:
        ends |= grown
    assert ends == set(TRANSITIONS) - {None}
    unfinished = {state for state in TRANSITIONS if state not in (None, "RELEASED")}
    assert all("UNKNOWN" in TRANSITIONS[state] for state in unfinished), "a dead owner's lease is read back first"


def test_only_the_last_use_of_an_id_counts(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.add_facts(operation="compose", outcome="failed", error="Busy", message="m", duration_s=0.0)
    journal.enter_state("ABORTING")
    journal.enter_state("FABRIC_FREE")
    journal.enter_state("RELEASED")
    assert journal.make_document()["operations"] == 1
    journal.enter_state("PLANNED", campaign="demo", owner="heir")
    document = Journal(tmp_path, "one").make_document()
    assert (document["state"], document["owner"], document["operations"]) == ("PLANNED", "heir", 0)
    assert document["times"]["released_s"] is None


def test_choosing_anew_starts_the_times_of_the_attempt_anew(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.enter_state("COMPOSING")
    journal.enter_state("FABRIC_OK")
    first = journal.make_document()["times"]
    assert first["fabric_done_s"] >= first["requested_s"]
    journal.enter_state("ABORTING")
    journal.enter_state("FABRIC_FREE")
    journal.enter_state("RESERVED")
    again = journal.make_document()["times"]
    assert again["fabric_done_s"] is None
    assert again["requested_s"] == first["requested_s"]


@pytest.mark.parametrize("lease_id", ["", "../x", "a/b", ".hidden", "x" * 201, "a b"])
def test_an_id_that_is_no_file_name_is_refused(lease_id: str, tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="file name"):
        Journal(tmp_path, lease_id)


def test_ownership_excludes_and_ends_once(tmp_path: Path) -> None:
    assert not is_owned(tmp_path, "one")
    first = LeaseOwnership(tmp_path, "one")
    assert is_owned(tmp_path, "one")
    with pytest.raises(Conflict, match="one belongs to process"):
        LeaseOwnership(tmp_path, "one")
    first.close()
    assert not is_owned(tmp_path, "one")
    second = LeaseOwnership(tmp_path, "one")
    first.close()
    assert is_owned(tmp_path, "one"), "closing again must not close what got the same descriptor"
    second.close()


def test_a_forgotten_ownership_stays(tmp_path: Path) -> None:
    descriptor = LeaseOwnership(tmp_path, "one")._descriptor
    assert is_owned(tmp_path, "one")
    assert descriptor is not None


def test_journaled_lists_ids_with_dots(tmp_path: Path) -> None:
    for lease_id in ("demo.spread-2x2.3f2a", "a"):
        Journal(tmp_path, lease_id).enter_state("PLANNED")
    LeaseOwnership(tmp_path, "only-locked").close()
    assert list_journaled_leases(tmp_path) == ["a", "demo.spread-2x2.3f2a"]
    assert list_journaled_leases(tmp_path / "nowhere") == []


def test_faults_are_those_of_the_fabric_and_of_the_use_in_their_order(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.add_facts(operation="compose", outcome="failed", error="Busy", message="no")
    journal.add_facts(operation="compose", outcome="done")
    journal.add_facts(fault={"operation": "allocation", "error": "DevicesDiffer", "message": "2 of 4"})
    document = journal.make_document()
    assert [fault["error"] for fault in document["faults"]] == ["Busy", "DevicesDiffer"]
    assert document["faults"][1].keys() == {"time_s", "operation", "error", "message"}
    assert (document["operations"], document["retries"]) == (2, 1)


def test_a_use_has_a_number_that_no_other_use_had_though_its_journal_is_lost(tmp_path: Path) -> None:
    results = Results(tmp_path, "demo")

    def used() -> str:
        journal = Journal(tmp_path / "journals", "one")
        journal.enter_state("PLANNED", campaign="demo", owner="me")
        use = determine_use_id(results, journal)
        document = make_lease_document(journal.make_document(), "lease", use)
        write_json(results.leases / f"{use}.json", document)
        assert determine_use_id(results, journal) == use
        journal.enter_state("RELEASED")
        return use

    assert [used(), used()] == ["one.1", "one.2"]
    (tmp_path / "journals" / "one.jsonl").unlink()
    assert [used(), used()] == ["one.3", "one.4"]


def test_what_is_held_has_a_token_of_its_own_until_it_is_given_back(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    first = journal.holding_token
    assert first
    for state in ("COMPOSING", "FABRIC_OK", "HOST_VISIBLE", "READY", "UNKNOWN", "FABRIC_OK", "HOST_VISIBLE", "READY"):
        journal.enter_state(state)  # type: ignore[arg-type]
        assert Journal(tmp_path, "one").holding_token == first
    for state in ("UNKNOWN", "ABORTING", "FABRIC_FREE"):
        journal.enter_state(state)  # type: ignore[arg-type]
    assert journal.holding_token == ""
    journal.enter_state("RESERVED", token="another")
    assert journal.holding_token == "another"
