"""What sbatch of Slurm 22.05.8 said to a campaign's likely mistakes and to limits; and words documented for other versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.slurm.refusal import parse_refusal

_FAILED = "sbatch: error: Batch job submission failed: "
_POLICY = f"{_FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
_RETRYING = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{_POLICY}", "AssocMaxSubmitJobLimit"),
        (f"sbatch: error: QOSGrpSubmitJobsLimit\n{_POLICY}", "QOSGrpSubmitJobsLimit"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", "QOSMaxSubmitJobPerUserLimit"),
        (f"sbatch: error: MaxSubmitJobsPerAccount\n{_POLICY}", "MaxSubmitJobsPerAccount"),
        (_POLICY, ""),
        (f"{_RETRYING}\n{_FAILED}Resource temporarily unavailable", ""),
        (_RETRYING, ""),
    ],
)
def test_too_many_jobs_means_wait(text: str, limit: str) -> None:
    refusal = parse_refusal(text)
    assert refusal.kind == "wait"
    assert limit in refusal.message


@pytest.mark.parametrize(
    "text",
    [
        f"{_FAILED}Unable to contact slurm controller (connect failure)",
        f"{_FAILED}Socket timed out on send/recv operation",
        f"{_FAILED}Zero Bytes were transmitted or received",
        f"{_FAILED}Slurm backup controller in standby mode",
        f"{_FAILED}Transport endpoint is not connected",
        "sbatch: error: If munged is up, restart with --num-threads=10\n"
        "sbatch: error: Munge encode failed: Failed to access socket\n"
        f"{_FAILED}Protocol authentication error",
        "sbatch: fatal: Unable to establish configuration source",
        "sbatch: no answer for 60 s",
    ],
)
def test_a_controller_that_does_not_answer_is_transient(text: str) -> None:
    assert parse_refusal(text).kind == "transient"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            f"sbatch: error: invalid partition specified: nowhere\n{_FAILED}Invalid partition name specified",
            "partition",
        ),
        (f"{_FAILED}Invalid account or account/partition combination specified", "account"),
        (f"{_FAILED}Invalid qos specification", "qos"),
        ("sbatch: error: Invalid --time specification", "time_min"),
        (f"{_FAILED}Requested time limit is invalid (missing or exceeds some limit)", "time_min"),
        (f"{_FAILED}Requested node configuration is not available", "gres"),
        ("sbatch: error: Invalid generic resource (gres) specification", "gres"),
        (f"{_FAILED}Invalid feature specification", "constraint"),
        (
            f"sbatch: error: Memory specification can not be satisfied\n{_FAILED}Requested node configuration is not available",
            "memory_gib",
        ),
        (f"{_FAILED}Requested reservation is invalid", "additional"),
        (f"{_FAILED}Invalid node name specified", "nodelist"),
        ("sbatch: unrecognized option '--nonsense'\nTry \"sbatch --help\" for more information", "additional"),
        (f"{_RETRYING}\n{_FAILED}Invalid license specification", "additional"),
        (f"{_FAILED}User's group not permitted to use this partition", "partition"),
        (f"{_FAILED}Job's QOS not permitted to use this partition (a allows b not c)", "qos"),
        (f"sbatch: error: QOSMaxCpuPerJobLimit\n{_POLICY}", ""),
        (f"sbatch: error: QOSGrpGRES\n{_POLICY}", ""),
        (f"sbatch: error: QOSMaxMemoryPerJob\n{_POLICY}", ""),
        (f"sbatch: error: AssocGrpBilling\n{_POLICY}", ""),
        (
            "sbatch: error: 'nowhere' can't be reached now, or it is an invalid entry for --cluster.  "
            "Use 'sacctmgr list clusters' to see available clusters.",
            "additional",
        ),
    ],
)
def test_a_mistake_names_what_to_change(text: str, key: str) -> None:
    refusal = parse_refusal(text)
    assert (refusal.kind, refusal.key) == ("mistake", key)
    assert "sleeping" not in refusal.message
    assert "sbatch: error" not in refusal.message


def test_slurms_own_words_are_told() -> None:
    text = f"sbatch: error: invalid partition specified: nowhere\n{_FAILED}Invalid partition name specified"
    assert "invalid partition specified: nowhere" in parse_refusal(text).message


@pytest.mark.parametrize(
    "banner", ["*** The debug partition is open again ***", "Limits: MaxJobsPerUser is 10, too many jobs"]
)
def test_a_banner_of_the_site_is_no_reason(banner: str) -> None:
    refusal = parse_refusal(f"{banner}\n{_FAILED}Invalid qos specification")
    assert (refusal.kind, refusal.key) == ("mistake", "qos")
    assert banner not in refusal.message
    refusal = parse_refusal(f"{banner}\nsbatch: unrecognized option '--nonsense'")
    assert (refusal.kind, refusal.key) == ("mistake", "additional")


@given(st.text(max_size=200))
def test_every_refusal_is_one_sentence(text: str) -> None:
    refusal = parse_refusal(text)
    assert refusal.message
    assert "\n" not in refusal.message


def test_what_is_not_known_is_not_guessed() -> None:
    assert parse_refusal(f"{_FAILED}Something of a plugin of this site").kind == "unknown"
