"""Counters of a host: texts of /proc, and against what psutil says of this one."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from campaign.observe.telemetry.sources import SamplerOptions
from campaign.observe.telemetry.sources.host import (
    open_energy_probe,
    open_infiniband_probe,
    open_probes,
    parse_disks,
    parse_memory,
    parse_networks,
    parse_processors,
    read_sockets_by_processor,
)

STAT = """cpu  400 0 100 1000 100 0 0 400 50 0
cpu0 100 0 100 300 0 0 0 0 0 0
cpu1 300 0 0 700 100 0 0 400 50 0
intr 12345 0 9
ctxt 1
"""
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  500       5    0    0    0     0          0         0      500       5    0    0    0     0       0          0
  eth0:99999999999 1    0    0    0     0          0         0 88888888888    1    0    0    0     0       0          0
"""
DISKS = """ 259       0 nvme0n1 10 0 2000 5 20 0 4000 9 0 1 2
 259       1 nvme0n1p1 10 0 2000 5 20 0 4000 9 0 1 2
 253       0 dm-0 10 0 2000 5 20 0 4000 9 0 1 2
"""


def test_processors_are_busy_with_what_is_neither_idle_nor_taken() -> None:
    one = {(part, quantity): value for part, quantity, value in parse_processors(STAT, {"cpu0": 0, "cpu1": 0}, 100.0)}
    assert one == {("host", "cpu_busy_s"): 5, ("host", "cpu_stolen_s"): 4, ("host", "cpu_all_s"): 20}
    two = {(part, quantity): value for part, quantity, value in parse_processors(STAT, {"cpu0": 0, "cpu1": 1}, 100.0)}
    assert two["socket:0", "cpu_busy_s"] == 2
    assert two["socket:1", "cpu_busy_s"] == 3
    assert two["socket:1", "cpu_all_s"] == 15


def test_memory_that_programs_cannot_have_is_used() -> None:
    text = "MemTotal:       2048000 kB\nMemFree:  1 kB\nMemAvailable:    1024000 kB\nHugePages_Total:       0\n"
    assert list(parse_memory(text)) == [("host", "memory_used_mib", 1000)]
    assert list(parse_memory("MemTotal: 5 kB\n")) == []


def test_interfaces_and_whole_disks() -> None:
    assert list(parse_networks(NET, lambda name: name == "eth0")) == [
        ("loopback:lo", "received_bytes", 500),
        ("loopback:lo", "sent_bytes", 500),
        ("nic:eth0", "received_bytes", 99999999999),
        ("nic:eth0", "sent_bytes", 88888888888),
    ]
    assert list(parse_disks(DISKS, lambda name: name == "nvme0n1")) == [
        ("disk:nvme0n1", "disk_read_bytes", 2000 * 512),
        ("disk:nvme0n1", "disk_written_bytes", 4000 * 512),
    ]


def test_what_repeats_a_card_is_no_card() -> None:
    text = NET + NET.splitlines()[-1].replace("eth0", "bond0") + "\n"
    found = parse_networks(text, lambda name: name == "eth0")
    assert [part for part, _, _ in found][::2] == ["loopback:lo", "nic:eth0", "virtual:bond0"]
    in_a_container = parse_networks(text, lambda name: False)
    assert [part for part, _, _ in in_a_container][::2] == ["loopback:lo", "nic:eth0", "nic:bond0"]


def test_energy_goes_on_where_its_counter_begins_anew(tmp_path: Path) -> None:
    for name, micro in (("intel-rapl:0", 9e6), ("intel-rapl:1", 1e6), ("intel-rapl:0:0", 5e5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{micro:.0f}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("10000000\n")
    probe = open_energy_probe(tmp_path)
    assert probe is not None
    assert list(probe.read()) == [("socket:0", "package_energy_j", 9), ("socket:1", "package_energy_j", 1)]
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2000000\n")
    assert next(iter(probe.read())) == ("socket:0", "package_energy_j", 12)


def test_there_is_no_energy_where_it_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    assert open_energy_probe(tmp_path) is None
    assert open_energy_probe(tmp_path / "none") is None


def test_ports_of_infiniband_count_words(tmp_path: Path) -> None:
    counters = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("10\n")
    (counters / "port_xmit_data").write_text("20\n")
    probe = open_infiniband_probe(tmp_path)
    assert probe is not None
    assert list(probe.read()) == [("port:mlx5_0/1", "received_bytes", 40), ("port:mlx5_0/1", "sent_bytes", 80)]
    assert open_infiniband_probe(tmp_path / "none") is None


def test_sockets_are_those_of_the_processors(tmp_path: Path) -> None:
    for number, socket in enumerate((0, 0, 1)):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "physical_package_id").write_text(f"{socket}\n")
    (tmp_path / "cpufreq").mkdir()
    assert read_sockets_by_processor(tmp_path) == {"cpu0": 0, "cpu1": 0, "cpu2": 1}


def test_this_host_is_as_psutil_sees_it() -> None:
    told = {
        (part, quantity): value for probe in open_probes(SamplerOptions(1.0)) for part, quantity, value in probe.read()
    }
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    assert told["host", "cpu_busy_s"] == pytest.approx(busy, rel=0.01, abs=2)
    assert told["host", "cpu_all_s"] == pytest.approx(busy + times.idle + times.iowait + times.steal, rel=0.01, abs=2)
    used = psutil.virtual_memory()
    assert told["host", "memory_used_mib"] == pytest.approx((used.total - used.available) / 2**20, rel=0.2)
    for name, counts in psutil.net_io_counters(pernic=True).items():
        (part,) = [part for part, quantity in told if part.endswith(f":{name}") and quantity == "received_bytes"]
        assert told[part, "received_bytes"] == pytest.approx(counts.bytes_recv, rel=0.05, abs=1e6)
    assert told["sampler", "cpu_used_s"] == pytest.approx(sum(os.times()[:2]), rel=0.1, abs=0.5)
