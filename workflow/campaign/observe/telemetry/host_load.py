"""Load of hosts during a run: processor time of the campaign's own processes and of all others, from samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.observe.telemetry.samples import HostSamples, TimeWindow
from campaign.spec.host_load import FOREIGN_LOAD_FLAG, HostLoad


def measure_host_loads(hosts: Sequence[HostSamples], window: TimeWindow) -> tuple[HostLoad, ...]:
    """Return the load of each machine in a window. A machine whose samples do not determine it is left out.

    Hosts that are emulated on one machine share its load, which is given for the first of them.
    """
    machines = {host.machine: host for host in reversed(hosts)}.values()
    return tuple(load for host in reversed(machines) if (load := _measure_host_load(host, window)))


def list_load_flags(loads: Sequence[HostLoad]) -> list[str]:
    """List the flag for foreign load if it was too high on a host."""
    return [FOREIGN_LOAD_FLAG] if any(load.has_foreign_load for load in loads) else []


def _measure_host_load(host: HostSamples, window: TimeWindow) -> HostLoad | None:
    """Return the load of a host from the samples in and around a window, or None if there are fewer than two of them."""
    names = ("cpu_own_s", "cpu_busy_s", "cpu_all_s")
    series = [item for name in names if (item := host.find_series("host", name))]
    if len(series) < len(names):
        return None
    # All values refer to the time for which the least frequent one was read.
    own = series[0]
    common_window = TimeWindow(max(window.start, own.times[0]), min(window.end, own.times[-1]))
    own_rate, busy_rate, all_rate = (item.compute_growth_rate(common_window) for item in series)
    if own_rate is None or busy_rate is None or not all_rate:
        return None
    foreign_rate = max(0.0, busy_rate - own_rate)
    return HostLoad(
        host=host.host,
        own_s=own_rate * window.length_s,
        foreign_s=foreign_rate * window.length_s,
        own_pct=100 * own_rate / all_rate,
        foreign_pct=100 * foreign_rate / all_rate,
    )
