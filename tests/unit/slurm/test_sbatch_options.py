"""What an allocation asks for: whose word counts, and that sbatch is told everything once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve_slurm_options import (
    compute_time_limit_min,
    count_requested_devices,
    merge_slurm_options,
    parse_slurm_options,
)
from campaign.slurm.sbatch_options import build_sbatch_parameters
from campaign.spec.cell import Configuration
from campaign.spec.system_file import SlurmOptions, SystemFile
from tests.campaign_files import load

LOCAL = Configuration("2x2-local", 2, 2, 2, 2, "a100", "local", "local")
HYBRID = Configuration("1x4-hybrid", 1, 4, 1, 4, "a100", "hybrid", "local")


def system(fabric: str = "simulated", hosts: Any = None, **slurm: Any) -> SystemFile:
    given = hosts or [
        {"name": "host[1-4]", "devices": [{"model": "a100", "count": 2}, {"kind": "nvme", "model": "d", "count": 9}]}
    ]
    return SystemFile.model_validate(
        {"name": "bench", "launcher": "slurm", "fabric": {"kind": fabric}, "hosts": given, "slurm": slurm}
    )


def parameters(options: SlurmOptions | None = None, of: SystemFile | None = None, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"time_min": 30, **changes}
    return build_sbatch_parameters("study", of or system(), LOCAL, options or SlurmOptions(), **given)


@pytest.mark.parametrize(
    ("fabric", "slurm", "pinned"),
    [
        ("static", {}, False),
        ("simulated", {}, True),
        ("static", {"placement": "pinned"}, True),
        ("simulated", {"placement": "scheduler"}, False),
        ("simulated", {"strategy": "reservation"}, True),
        # Hosts are only composed once Slurm has chosen them.
        ("simulated", {"strategy": "resume"}, False),
        ("simulated", {"strategy": "resume", "placement": "pinned"}, False),
    ],
)
def test_who_chooses_the_hosts(fabric: str, slurm: dict[str, Any], pinned: bool) -> None:
    assert system(fabric, **slurm).are_hosts_pinned is pinned


def test_devices_that_come_on_top_of_a_hosts_own_are_asked_for_with_them() -> None:
    assert count_requested_devices(system(), LOCAL) == 2
    assert count_requested_devices(system(), HYBRID) == 2 + 3


def test_the_own_devices_of_hosts_that_are_not_used_do_not_count() -> None:
    two = [
        {"name": "small", "devices": [{"model": "a100", "count": 1}]},
        {"name": "large[1-2]", "devices": [{"model": "a100", "count": 8}]},
    ]
    assert count_requested_devices(system(hosts=two), HYBRID) == 8 + 3
    assert count_requested_devices(system(hosts=two), HYBRID, ["small"]) == 1 + 3
    assert count_requested_devices(system(hosts=two), HYBRID, ["large2"]) == 8 + 3


def test_the_last_word_counts() -> None:
    of = system(
        partition="gpu",
        account="mine",
        qos="normal",
        additional={"licenses": "a", "nice": 10},
        overrides=[
            {"when": "hosts > 1", "partition": "wide", "additional": {"nice": 20}},
            {"when": "hosts > 8", "partition": "widest", "constraint": "never"},
            {"when": "attach == 'local' and ranks == 4", "qos": "high"},
        ],
    )
    chosen = merge_slurm_options(of, LOCAL, SlurmOptions(account="yours", additional={"licenses": "b"}))
    assert chosen == SlurmOptions(
        partition="wide", account="yours", qos="high", additional={"licenses": "b", "nice": 20}
    )
    assert merge_slurm_options(of, HYBRID, SlurmOptions()) == SlurmOptions(
        partition="gpu", account="mine", qos="normal", additional={"licenses": "a", "nice": 10}
    )


options = st.builds(
    SlurmOptions,
    partition=st.none() | st.sampled_from(["a", "b"]),
    time_min=st.none() | st.integers(1, 9),
    memory_gib=st.none() | st.floats(0.1, 9),
    additional=st.dictionaries(st.sampled_from(["nice", "licenses"]), st.integers(0, 9)),
)


@given(options, options)
def test_what_a_person_says_wins_and_what_they_leave_out_stays(site: SlurmOptions, asked: SlurmOptions) -> None:
    chosen = merge_slurm_options(system(**site.model_dump(exclude_none=True)), LOCAL, asked)
    for name in ("partition", "time_min", "memory_gib"):
        said = getattr(asked, name)
        assert getattr(chosen, name) == (getattr(site, name) if said is None else said)
    assert chosen.additional == {**site.additional, **asked.additional}
    assert merge_slurm_options(system(**site.model_dump(exclude_none=True)), LOCAL, SlurmOptions()) == site


def test_an_override_that_means_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slurm\.overrides\.0\.when.*hots"):
        merge_slurm_options(
            load(tmp_path, {"system.slurm": {"overrides": [{"when": "hots > 1"}]}}).system, LOCAL, SlurmOptions()
        )


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_time_limit_has_head_room_and_is_never_more_than_the_runs_may_take(
    expected_s: float, longest_s: float
) -> None:
    minutes = compute_time_limit_min(expected_s, longest_s)
    assert minutes >= 10
    assert minutes <= longest_s / 60 + 11
    # Enough for what is expected, or for all that the runs are allowed.
    assert minutes * 60 >= min(2 * expected_s, longest_s)


def test_a_time_limit_that_the_person_gives_is_taken() -> None:
    assert compute_time_limit_min(3600, 1e9) == 130
    assert compute_time_limit_min(0, 1e9) == 15
    assert (compute_time_limit_min(None, 1800), compute_time_limit_min(None, 1e9)) == (40, 1440)
    assert parameters(SlurmOptions(time_min=7))["time"] == 7
    assert parameters()["time"] == 30


@pytest.mark.parametrize(
    ("options", "slurm", "mem"),
    [
        (SlurmOptions(), {}, "0"),
        (SlurmOptions(), {"exclusive": False}, None),
        (SlurmOptions(memory_gib=1.5), {}, "1536M"),
        (SlurmOptions(memory_gib=64), {"exclusive": False}, "65536M"),
        (SlurmOptions(additional={"mem-per-cpu": "2G"}), {}, None),
        (SlurmOptions(additional={"mem_per_gpu": "2G"}), {}, None),
    ],
)
def test_memory(options: SlurmOptions, slurm: dict[str, Any], mem: str | None) -> None:
    assert parameters(options, system(**slurm)).get("mem") == mem


def test_a_further_option_replaces_ours_under_either_spelling() -> None:
    found = parameters(
        SlurmOptions(cpus_per_device=2, additional={"cpus-per-task": 4, "exclusive": False, "no-requeue": True})
    )
    # submitit lets these replace its own by name.
    assert found["additional_parameters"] == {"signal": "B:USR2@60", "cpus_per_task": 4, "no_requeue": True}
    assert "exclusive" not in found


@pytest.mark.parametrize("name", ["comment", "array", "output", "job-name", "open-mode", "signal", "parsable"])
def test_what_a_driver_is_found_by_cannot_be_replaced(name: str) -> None:
    with pytest.raises(ConfigError, match=f"additional: option '{name}' is set by the campaign"):
        parse_slurm_options({"additional": {name: "x"}})


def test_a_key_of_the_system_file_is_named_where_it_is_given_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"gres can only be set in the system file \(`slurm\.gres`\)"):
        parse_slurm_options({"gres": "gpu:a100"})


def test_hosts_are_named_or_left_out() -> None:
    assert parameters(hosts=["host2", "host1"])["nodelist"] == "host2,host1"
    left_out = parameters(excluded_hosts={"host4", "host3"})
    assert left_out["exclude"] == "host3,host4"
    assert "nodelist" not in left_out
    assert "gres" not in parameters(of=system(gres=""))


def test_equal_compositions_have_equal_parameters() -> None:
    assert parameters(SlurmOptions(partition="a")) == parameters(SlurmOptions(partition="a"))
    assert parameters(further={"reservation": "x"}) != parameters()


@pytest.mark.parametrize("given", [None, {}, {"partition": "gpu", "time_min": 30}])
def test_what_a_person_may_say(given: Any) -> None:
    assert parse_slurm_options(given) == SlurmOptions(**(given or {}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partion": "gpu"}, "partion: .*the allowed keys are: partition, account, qos"),
        ({"time_min": 0}, "time_min: .*greater than or equal to 1"),
        ("gpu", "gpu: "),
    ],
)
def test_what_a_person_may_not_say(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--config slurm: {words}"):
        parse_slurm_options(given)
