"""Metrics of a run, from what the samplers of its hosts saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from campaign.observe.telemetry.run_metrics import (
    DEVICE_PART_FLAG,
    SHORT_PCIE_SAMPLES_FLAG,
    UsedDeviceNames,
    find_disturbances,
    find_unused_devices,
    summarize_run,
)
from campaign.observe.telemetry.samples import HostSamples, SampleSeries, TimeWindow

WINDOW = TimeWindow(100.0, 110.0)
TIMES = tuple(95.0 + n for n in range(21))
UUID = "GPU-{}0000000-0000-0000-0000-000000000000"
Values = Mapping[tuple[str, str], Callable[[float], float]]


def host(
    name: str = "h", values: Values | None = None, machine: str = "", times: tuple[float, ...] = TIMES, network: int = 1
) -> HostSamples:
    series = {key: SampleSeries(times, tuple(value(time) for time in times)) for key, value in (values or {}).items()}
    return HostSamples(name, machine or name, network, 1.0, series)


def gpu(number: int) -> str:
    return f"gpu:{UUID.format(number)}"


def used(*numbers: int) -> UsedDeviceNames:
    return UsedDeviceNames(tuple(UUID.format(number) for number in numbers))


def constant(value: float) -> Callable[[float], float]:
    return lambda time: value


def test_only_devices_of_the_run_count() -> None:
    values = {(gpu(n), "power_w"): constant(100.0 * (n + 1)) for n in range(3)}
    metrics, flags = summarize_run([host(values=values)], WINDOW, {"h": used(2, 0)}, 20.0)
    assert metrics["device_power_mean_w"] == pytest.approx(200)
    assert metrics["device_power_peak_w"] == 300
    assert metrics["energy_j"] == pytest.approx(4000)
    assert metrics["energy_per_sample_j"] == pytest.approx(200)
    assert flags == ()


def idle_and_busy() -> Values:
    """The first device of NVML is idle, the third one is that of the run."""
    return {(gpu(n), "power_w"): constant(power_w) for n, power_w in enumerate((75.0, 75.0, 300.0))}


def test_the_device_that_a_rank_reports_counts_and_no_other() -> None:
    """With CUDA_VISIBLE_DEVICES=3 a run got the figures of the idle GPU 0."""
    for name in (UUID.format(2), UUID.format(2).removeprefix("GPU-"), UUID.format(2).upper().replace("GPU-", "")):
        reporting = UsedDeviceNames((None,), (name,))
        metrics, flags = summarize_run([host(values=idle_and_busy())], WINDOW, {"h": reporting}, None)
        assert metrics["device_power_mean_w"] == pytest.approx(300)
        assert (flags, "energy_per_sample_j" in metrics) == ((), False)
    misnamed = UsedDeviceNames((UUID.format(0),), (UUID.format(2),))
    metrics, _ = summarize_run([host(values=idle_and_busy())], WINDOW, {"h": misnamed}, None)
    assert metrics["device_power_mean_w"] == pytest.approx(300), "it counts more than what the composition says"


def test_devices_that_nobody_identifies_have_no_metrics_and_the_reason() -> None:
    for unnamed in (UsedDeviceNames((None,)), UsedDeviceNames(("3",)), UsedDeviceNames(("0000:17:00.0",))):
        metrics, (flag,) = summarize_run([host(values=idle_and_busy())], WINDOW, {"h": unnamed}, None)
        assert metrics == {}
        assert (
            "it is unknown which 1 of 3 devices on h the run used, because neither the ranks nor the composition report UUIDs"
            in flag
        )


def test_a_run_that_used_all_devices_of_a_host_needs_no_names() -> None:
    metrics, flags = summarize_run([host(values=idle_and_busy())], WINDOW, {"h": UsedDeviceNames((None,) * 3)}, None)
    assert metrics["device_power_mean_w"] == pytest.approx(150)
    assert flags == ()


def test_what_other_vendors_devices_report_is_not_the_name_that_their_tools_give() -> None:
    values = {("gpu:03ff74a1-0000-1000-8000-00000000000a", "power_w"): constant(50)}
    used_one = UsedDeviceNames(("03ff74a1-0000-1000-8000-00000000000a",), ("61336530-6137-6330-3562-313538393736",))
    metrics, flags = summarize_run([host(values=values)], WINDOW, {"h": used_one}, None)
    assert (metrics["device_power_mean_w"], flags) == (pytest.approx(50), ())


def test_a_host_whose_devices_are_not_read_says_why() -> None:
    seen = host(values={("host", "load_1min"): constant(1)})
    blind = replace(seen, problems=("the package nvidia-ml-py is not installed on the host",))
    metrics, flags = summarize_run([blind], WINDOW, {"h": used(0)}, None)
    assert metrics == {}
    assert flags == (
        "telemetry: no device was found on h (the package nvidia-ml-py is not installed on the host), but the run used 1 there",
    )


def test_a_part_of_a_device_has_its_own_memory_and_says_what_is_missing() -> None:
    part = UUID.format(5).replace("GPU", "MIG")
    values: Values = {
        (gpu(0), "power_w"): constant(300),
        (gpu(0), "memory_used_mib"): constant(900),
        (f"gpu:{part}", "memory_used_mib"): constant(100),
    }
    metrics, flags = summarize_run([host(values=values)], WINDOW, {"h": UsedDeviceNames((part,))}, None)
    assert metrics["device_memory_mean_mib"] == pytest.approx(100)
    assert "device_power_mean_w" not in metrics
    assert flags == (DEVICE_PART_FLAG,)
    reporting_whole = {"h": UsedDeviceNames((part,), (UUID.format(0),))}
    assert summarize_run([host(values=values)], WINDOW, reporting_whole, None) == (metrics, flags)


@pytest.mark.parametrize(("times", "count", "share"), [((), 0, 0), ((104.5, 105.5, 106.5), 3, 40)])
def test_thin_samples_of_a_window_are_flagged_with_how_much_they_cover(
    times: tuple[float, ...], count: int, share: int
) -> None:
    thin = host(values={(gpu(0), "power_w"): constant(1)}, times=(50.0, 51.0, *times))
    metrics, (flag,) = summarize_run([thin], WINDOW, {"h": used(0)}, None)
    assert not any("power" in name for name in metrics)
    assert f"was sampled in only {share} % of the window ({count} samples in 10 s, interval 1 s)" in flag


def test_how_often_devices_were_sampled_and_what_a_look_cost_is_recorded() -> None:
    looked = replace(host(values={(gpu(0), "power_w"): constant(1)}), interval_s=1.0, look_s=0.025)
    metrics, _ = summarize_run([looked], WINDOW, {"h": used(0)}, None)
    assert (metrics["telemetry_interval_s"], metrics["telemetry_look_s"]) == (1.0, 0.025)


def test_a_process_that_was_there_before_the_run_and_stayed_is_flagged() -> None:
    values = {(gpu(n), f"process_{pid}_mib"): constant(500) for n, pid in ((0, 7), (0, 8), (1, 9))}
    earlier = {gpu(0): {"process_7_mib": 2048.0, "process_6_mib": 100.0}, gpu(1): {"process_9_mib": 1.0}}
    ending = {(gpu(0), "process_6_mib"): SampleSeries((95.0,), (100.0,))}
    seen = host(values=values)
    seen = replace(seen, earlier=earlier, series={**seen.series, **ending})
    expected = f"another process used {gpu(0)} before and during the run: pid 7"
    assert find_disturbances([seen], {"h": used(0)}) == (expected,)


def test_a_link_counts_at_its_best_in_the_window_and_the_slowest_of_all() -> None:
    """It falls back while nothing passes."""
    values: Values = {
        **{(gpu(n), "pcie_generation"): lambda time: 5.0 if int(time) % 3 else 1.0 for n in range(2)},
        (gpu(0), "pcie_width"): constant(16),
        (gpu(1), "pcie_width"): constant(8),
    }
    metrics, _ = summarize_run([host(values=values)], WINDOW, {"h": used(0, 1)}, None)
    assert (metrics["pcie_generation"], metrics["pcie_width"]) == (5, 8)


def test_a_run_without_devices_has_no_metrics_of_them() -> None:
    metrics, _ = summarize_run(
        [host(values={(gpu(0), "power_w"): constant(50)})], WINDOW, {"h": UsedDeviceNames()}, None
    )
    assert metrics == {}


def test_the_energy_counter_comes_before_power() -> None:
    values: Values = {(gpu(0), "power_w"): constant(100), (gpu(0), "energy_j"): lambda time: 120 * time}
    assert summarize_run([host(values=values)], WINDOW, {"h": used(0)}, None)[0]["energy_j"] == pytest.approx(1200)


def test_a_counter_that_went_back_leaves_energy_to_power() -> None:
    values: Values = {(gpu(0), "power_w"): constant(100), (gpu(0), "energy_j"): lambda time: 120 * (time % 105)}
    assert summarize_run([host(values=values)], WINDOW, {"h": used(0)}, None)[0]["energy_j"] == pytest.approx(1000)


def test_what_a_device_does_not_have_is_absent() -> None:
    metrics, _ = summarize_run([host(values={(gpu(0), "utilisation_pct"): constant(0)})], WINDOW, {"h": used(0)}, 1.0)
    assert metrics == {"device_utilisation_mean_pct": 0, "device_utilisation_peak_pct": 0}


def test_a_mean_over_some_devices_is_none_of_all() -> None:
    values = {(gpu(0), "power_w"): constant(100), (gpu(1), "utilisation_pct"): constant(5)}
    metrics, _ = summarize_run([host(values=values)], WINDOW, {"h": used(0, 1)}, None)
    assert not any("power" in name or "energy" in name or "utilisation" in name for name in metrics)


def test_a_device_that_nobody_saw_is_named() -> None:
    metrics, flags = summarize_run([host(values={(gpu(0), "power_w"): constant(1)})], WINDOW, {"h": used(0, 7)}, None)
    assert flags == (f"telemetry: {UUID.format(7)} was not found",)
    assert metrics == {}


def test_a_device_that_is_lost_midway_gives_no_energy() -> None:
    gone = host(values={(gpu(0), "power_w"): constant(100), (gpu(0), "lost"): constant(1)}, times=TIMES[:9])
    metrics, flags = summarize_run([gone], WINDOW, {"h": used(0)}, 1.0)
    assert metrics == {}
    assert flags == (f"telemetry: {gpu(0)} on h was lost",)


def test_counters_become_rates() -> None:
    values: Values = {
        (gpu(0), "pcie_received_bytes"): lambda time: 2e9 * time,
        (gpu(1), "pcie_received_bytes"): lambda time: 4e9 * time,
        ("nic:eth0", "received_bytes"): lambda time: 1e9 * time,
        ("nic:eth1", "received_bytes"): lambda time: 2e9 * time,
        ("virtual:bond0", "received_bytes"): lambda time: 3e9 * time,
        ("loopback:lo", "received_bytes"): lambda time: 5e9 * time,
        ("disk:a", "disk_read_bytes"): lambda time: 7e9 * time,
    }
    metrics, _ = summarize_run([host(values=values)], WINDOW, {"h": used(0, 1)}, None)
    expected = {"pcie_rx": (3, 4), "network_rx": (3, 3), "loopback_rx": (5, 5), "disk_read": (7, 7)}
    for name, (mean, peak) in expected.items():
        assert metrics[f"{name}_mean_gb_per_s"] == pytest.approx(mean)
        assert metrics[f"{name}_peak_gb_per_s"] == pytest.approx(peak)


def test_looks_at_pcie_are_called_looks() -> None:
    values = {(gpu(0), "pcie_received_gb_per_s"): constant(3)}
    metrics, flags = summarize_run([host(values=values)], WINDOW, {"h": used(0)}, None)
    assert metrics["pcie_rx_mean_gb_per_s"] == pytest.approx(3)
    assert flags == (SHORT_PCIE_SAMPLES_FLAG,)


def test_events_and_throttling() -> None:
    values: Values = {
        (gpu(0), "xid_count"): lambda time: float(time > 104),
        (gpu(0), "ecc_uncorrected_count"): constant(12),
        (gpu(0), "capped_power"): lambda time: float(time >= 105),
        (gpu(0), "slowed_thermal"): lambda time: float(time >= 109),
        (gpu(0), "slowed_hardware"): constant(0),
        (gpu(0), "clocks_set"): constant(1),
    }
    metrics, _ = summarize_run([host(values=values)], WINDOW, {"h": used(0)}, None)
    assert metrics["xid_events"] == 1
    assert metrics["ecc_uncorrected"] == 0
    assert metrics["device_power_capped_share_pct"] == pytest.approx(55)
    assert metrics["device_slowed_share_pct"] == metrics["throttled_thermal_share_pct"] == pytest.approx(15)
    assert metrics["device_clocks_set_share_pct"] == 100
    assert "ecc_corrected" not in metrics


def processors(share: float) -> Values:
    return {
        ("host", "cpu_busy_s"): lambda time: 4 * share * time,
        ("host", "cpu_stolen_s"): constant(0),
        ("host", "cpu_all_s"): lambda time: 4 * time,
        ("host", "memory_used_mib"): constant(1000 * share),
    }


def test_hosts_count_once_each_and_machines_once() -> None:
    two = [host("a", processors(0.2)), host("b", processors(0.6))]
    metrics, _ = summarize_run(two, WINDOW, {}, None)
    assert metrics["cpu_utilisation_mean_pct"] == pytest.approx(40)
    assert metrics["cpu_utilisation_peak_pct"] == pytest.approx(60)
    assert metrics["host_memory_used_mean_mib"] == pytest.approx(400)
    same = [host("a", processors(0.2), "m"), host("b", processors(0.6), "m")]
    assert summarize_run(same, WINDOW, {}, None)[0]["cpu_utilisation_mean_pct"] == pytest.approx(20)


def test_networks_of_emulated_hosts_are_their_own() -> None:
    values: Values = {("nic:eth0", "sent_bytes"): lambda time: 1e9 * time}
    more: Values = {("nic:eth0", "sent_bytes"): lambda time: 3e9 * time}
    apart = [host("a", values, "m"), host("b", more, "m", network=2)]
    assert summarize_run(apart, WINDOW, {}, None)[0]["network_tx_mean_gb_per_s"] == pytest.approx(2)
    shared = [host("a", values, "m"), host("b", more, "m")]
    assert summarize_run(shared, WINDOW, {}, None)[0]["network_tx_mean_gb_per_s"] == pytest.approx(1)


def test_sockets_are_told_by_the_busiest_and_energy_by_all() -> None:
    values: Values = {
        **processors(0.5),
        **{(f"socket:{n}", "cpu_busy_s"): lambda time, n=n: (0.2 + 0.6 * n) * time for n in (0, 1)},  # type: ignore[misc]
        **{(f"socket:{n}", "cpu_all_s"): lambda time: time for n in (0, 1)},
        **{(f"socket:{n}", "package_energy_j"): lambda time: 50 * time for n in (0, 1)},
    }
    metrics, _ = summarize_run([host(values=values)], WINDOW, {}, None)
    assert metrics["cpu_socket_utilisation_max_pct"] == pytest.approx(80)
    assert metrics["host_energy_j"] == pytest.approx(1000)


def test_what_a_program_publishes_stands_for_devices_and_counts_once() -> None:
    values = {("gauge:a/0", "power_w"): constant(250), (gpu(0), "power_w"): constant(7)}
    metrics, _ = summarize_run([host("a", values, "m"), host("b", values, "m")], WINDOW, {"a": used(0)}, None)
    assert metrics["energy_j"] == pytest.approx(2500)


def test_a_clock_that_was_set_is_flagged() -> None:
    jumped = HostSamples("h", "m", 1, 1.0, {}, jumped_s=12.34)
    assert find_disturbances([jumped], {}) == ("the clock of h was changed by 12.3 s during the run",)


def looks(busy_pct: float, memory_mib: float | None, number: int = 0) -> Values:
    values = {(gpu(number), "utilisation_pct"): constant(busy_pct)}
    return values if memory_mib is None else {**values, (gpu(number), "memory_used_mib"): constant(memory_mib)}


@pytest.mark.parametrize(
    ("busy_pct", "memory_mib", "unused", "flagged"),
    [
        (0.0, 3.0, True, False),
        (0.0, 400.0, False, True),  # copies need no kernels
        (0.0, None, False, True),
        (4.0, 3.0, False, False),
    ],
)
def test_a_device_without_work_or_memory_was_not_used(
    busy_pct: float, memory_mib: float | None, unused: bool, flagged: bool
) -> None:
    values = {**looks(busy_pct, memory_mib), **looks(90.0, 5000.0, 1)}
    found, flags = find_unused_devices([host(values=values)], {"h": used(0, 1)}, WINDOW)
    assert (bool(found), bool(flags)) == (unused, flagged)
    assert all(UUID.format(0) in said and "never busy in 11 samples" in said for said in (*found, *flags))


def test_of_devices_without_names_any_of_the_host_may_have_been_used() -> None:
    values = {**looks(0.0, 3.0), **looks(90.0, 5000.0, 1)}
    unnamed = {"h": UsedDeviceNames((None,))}
    assert find_unused_devices([host(values=values)], unnamed, WINDOW) == ((), ()), "the run had one, and one was busy"
    (said,), _ = find_unused_devices([host(values=values)], {"h": UsedDeviceNames((None, None))}, WINDOW)
    assert UUID.format(0) in said


def test_few_samples_prove_nothing() -> None:
    short = tuple(100.0 + n for n in range(4))
    found = find_unused_devices([host(values=looks(0.0, 3.0), times=short)], {"h": used(0)}, TimeWindow(100.0, 103.0))
    assert found == ((), ())
