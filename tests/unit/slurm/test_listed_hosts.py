"""Hosts as sinfo of Slurm 22.05.8 listed them, in the format of `LISTING`."""

from __future__ import annotations

import pytest

from campaign.slurm.listed_hosts import ListedHost, parse_features, parse_listing, parse_time_limit_min

_SAID = "host1|batch|idle|gpu:a100:4(S:0-1)|ib,a100\nhost1|debug|idle|gpu:a100:4(S:0-1)|ib,a100\nhost2|batch|down*|(null)|(null)\n"


def test_a_host_of_several_partitions_is_one() -> None:
    assert parse_listing(f"sinfo: warning: x\n{_SAID}") == {
        "host1": ListedHost("host1", ("batch", "debug"), "idle", "gpu:a100:4(S:0-1)", ("ib", "a100")),
        "host2": ListedHost("host2", ("batch",), "down*", "", ()),
    }


# The forms of sbatch(1) of Slurm 22.05, and features as sites name them.
@pytest.mark.parametrize(
    ("constraint", "features"),
    [
        ("2080ti", ("2080ti",)),
        ("GPU_MEM:80GB&GPU_SKU:A100_SXM4", ("GPU_MEM:80GB", "GPU_SKU:A100_SXM4")),
        ("intel|amd", ("intel", "amd")),
        ("[rack1|rack2|rack3|rack4]", ("rack1", "rack2", "rack3", "rack4")),
        ("[rack1*2&rack2*4]", ("rack1", "rack2")),
        ("knl&[a*4|a*2]", ("knl", "a")),
        ("(knl&a2a&flat)*2", ("knl", "a2a", "flat")),
    ],
)
def test_features_of_a_constraint_are_those_of_slurms_grammar(constraint: str, features: tuple[str, ...]) -> None:
    assert parse_features(constraint) == features


@pytest.mark.parametrize(
    ("partition", "limit_min"),
    [("debug", 30), (None, 1440), ("debug,batch", 1440), ("long", None), ("debug,long", None), ("absent", None)],
)
def test_the_time_that_partitions_allow(partition: str | None, limit_min: int | None) -> None:
    text = "sinfo: warning: x\nbatch*|1-00:00:00\ndebug|30:00\nlong|infinite\n"
    assert parse_time_limit_min(text, partition) == limit_min
