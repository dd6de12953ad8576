from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.slurm.parse import (
    FINAL_STATES,
    SlurmJob,
    expand_hosts,
    parse_duration_s,
    parse_hosts_or_empty,
    parse_sacct,
    parse_squeue,
)
from tests.unit.slurm.saved import saved


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host1", ["host1"]),
        ("host[1-3,7],x", ["host1", "host2", "host3", "host7", "x"]),
        ("c[08-11]", ["c08", "c09", "c10", "c11"]),
        ("r[1-2]c[01-02]-ib", ["r1c01-ib", "r1c02-ib", "r2c01-ib", "r2c02-ib"]),
        ("n[1,3],gpu-a100-[9-10].site.org", ["n1", "n3", "gpu-a100-9.site.org", "gpu-a100-10.site.org"]),
        ("t[0-6:3]", ["t0", "t3", "t6"]),
        ("", []),
        ("(null)", []),
        ("None assigned", []),
    ],
)
def test_hosts_are_expanded(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


@pytest.mark.parametrize("text", ["host[1-3", "host1-3]", "a,,b", "host[a-b]", "host[]", "a b", "host[1-3]]"])
def test_what_is_no_list_of_hosts_is_an_error_or_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        expand_hosts(text)
    assert parse_hosts_or_empty(text) == ()


@given(
    st.lists(st.tuples(st.sampled_from(["host", "r2c", "gpu-"]), st.integers(0, 9999), st.integers(1, 5)), min_size=1)
)
def test_expanding_gives_back_what_was_listed(parts: list[tuple[str, int, int]]) -> None:
    names = [f"{prefix}{number:0{width}d}" for prefix, number, width in parts]
    brackets = ",".join(f"{prefix}[{number:0{width}d}]" for prefix, number, width in parts)
    assert list(expand_hosts(",".join(names))) == names
    assert list(expand_hosts(brackets)) == names


@given(st.text(alphabet="ab1[],-: %", max_size=30))
def test_expanding_ends_in_names_without_brackets_or_in_an_error(text: str) -> None:
    for name in parse_hosts_or_empty(text):
        assert name
        assert not set(name) & set("[], ")


def test_the_queue_of_a_real_slurm() -> None:
    jobs = {job.job_id: job for job in parse_squeue(saved("squeue"))}
    assert len(jobs) == len([line for line in saved("squeue").splitlines() if "_" not in line.partition("|")[0]])
    assert jobs["3"] == SlurmJob("3", "RUNNING", "", ("host1", "host2"), "demo/2x2", "campaign=a b.yaml results=x")
    assert "4_2" not in jobs, "tasks of arrays are none of a campaign's jobs"
    assert jobs["2"].state == "FAILED"
    assert jobs["9"].reason == "ReqNodeNotAvail, UnavailableNodes:host3"
    assert {name for name, job in jobs.items() if not job.is_active} == {"11", "1", "2"}


def test_a_name_with_the_separator_does_not_hide_a_job() -> None:
    assert SlurmJob("14", "RUNNING", "", ("host1",), "we", "ird name|c|d") in parse_squeue(saved("squeue"))


def test_ended_jobs_of_a_real_slurm() -> None:
    states = {job.job_id: (job.state, job.is_active) for job in parse_squeue(saved("squeue-ended"))}
    assert states["21"] == ("NODE_FAIL", False)
    assert states["22"] == ("PENDING", True)


@pytest.mark.parametrize(
    "line",
    [
        "CLUSTER: other",
        "squeue: warning: something",
        "",
        "JOBID|STATE|REASON|NODELIST|TIME|NAME|COMMENT|",
        "x|RUNNING|None|host1|name|(null)",
        "7|RUNNING|None",
        "7_3|RUNNING|None|host1|name|(null)",
        "7_[1-1000,...]|PENDING|None||name|(null)",
    ],
)
def test_a_line_of_another_shape_is_skipped(line: str) -> None:
    good = "8|RUNNING|None|host1|name|(null)"
    assert parse_squeue(f"{line}\n{good}\n") == (SlurmJob("8", "RUNNING", "", ("host1",), "name"),)


@given(st.text(max_size=60))
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert all(job.job_id for job in (*parse_squeue(text), *parse_sacct(text)))


@given(
    st.integers(1, 10**8),
    st.sampled_from(sorted(FINAL_STATES)),
    st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), max_size=30),
)
def test_any_job_of_the_queue_is_found_whatever_its_name(number: int, state: str, name: str) -> None:
    job_id = str(number)
    found = parse_squeue(f"{job_id}|{state}|None|host[1-2]|{name}|(null)\n")
    assert [(job.job_id, job.state, job.hosts) for job in found] == [(job_id, state, ("host1", "host2"))]


def test_the_accounting_of_a_real_slurm() -> None:
    jobs = {job.job_id: job for job in parse_sacct(saved("sacct"))}
    assert jobs["1"] == SlurmJob("1", "COMPLETED", "", ("host1",), "ok", exit_code=0, queued=False)
    assert (jobs["2"].state, jobs["2"].exit_code) == ("FAILED", 3)
    assert jobs["3"].hosts == ("host1", "host2")
    assert jobs["5"].hosts == ()
    assert jobs["10"].state == "TIMEOUT"
    assert jobs["11"].state == "CANCELLED"
    assert "999" not in jobs


def test_the_accounting_of_failed_jobs() -> None:
    jobs = {job.job_id: job for job in parse_sacct(saved("sacct-failed"))}
    assert jobs["21"].state == "NODE_FAIL"


def test_steps_are_no_jobs() -> None:
    assert {job.job_id for job in parse_sacct(saved("sacct-steps"))} == {"21"}


def test_of_a_requeued_job_that_is_told_twice_the_last_line_counts() -> None:
    text = "5|NODE_FAIL|0:0|host1|None|n\n5|RUNNING|0:0|host2|None|n\n"
    assert [(job.state, job.hosts) for job in parse_sacct(text)] == [("RUNNING", ("host2",))]


@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        ("5|CANCELLED by 1000|0:15|c01|None|n", "CANCELLED", -15),
        ("5|OUT_OF_MEMORY|0:125|c01|OutOfMemory|n", "OUT_OF_MEMORY", -125),  # sacct(1), JOB STATE CODES, 24.11
        ("5|LAUNCH_FAILED|1:0|c01|None|n", "LAUNCH_FAILED", 1),  # job_state_codes.html, 25.05
        ("5|RUNNING||c01|None|n", "RUNNING", None),
    ],
)
def test_states_of_the_accounting(text: str, state: str, code: int | None) -> None:
    assert [(job.state, job.exit_code, job.queued) for job in parse_sacct(text)] == [(state, code, False)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05", 5),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("17", 17),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration_s(text) == seconds
