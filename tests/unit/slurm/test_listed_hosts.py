"""Hosts as sinfo of Slurm 22.05.8 listed them, in the format of `LISTING`."""

from __future__ import annotations

from campaign.slurm.listed_hosts import ListedHost, parse_listing

_SAID = "host1|batch|idle|gpu:a100:4(S:0-1)|ib,a100\nhost1|debug|idle|gpu:a100:4(S:0-1)|ib,a100\nhost2|batch|down*|(null)|(null)\n"


def test_a_host_of_several_partitions_is_one() -> None:
    assert parse_listing(f"sinfo: warning: x\n{_SAID}") == {
        "host1": ListedHost("host1", ("batch", "debug"), "idle", "gpu:a100:4(S:0-1)", ("ib", "a100")),
        "host2": ListedHost("host2", ("batch",), "down*", "", ()),
    }
