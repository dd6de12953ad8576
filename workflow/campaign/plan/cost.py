"""Expected duration and cost of a campaign, from medians of earlier runs and leases. Pure.

The expected duration of a run is the median of earlier runs of its cell, or of its workload on the same number of devices, or of
its workload. Otherwise it is `run_s` of the workload file, or unknown. Runs of other cells count if they used the same
model of device behind the same kind of fabric. Composition and release take the median of earlier leases with the same number of
devices and the same kind of fabric, or recorded times of the fabric's operations. The other parts of a lease (queue, start, time
between runs) are medians of leases, and count as zero before the first lease.

A lease holds its pooled devices all the time. It also holds the hosts that lend them (`home` of a pool entry) with their
remaining devices. It holds its own hosts and their built-in devices all the time, except under Slurm with `strategy: static`,
where it holds them only while the driver's job runs. With exclusive allocations, it holds all devices of its hosts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Literal, get_args

from campaign.common.wording import pluralize, shorten_names
from campaign.fabrics.operations import OperationCounts, OperationSteps
from campaign.fabrics.registry import load_fabric_kind
from campaign.plan.campaign.open_fabric import PlannedPlacement, find_recorded_times
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import (
    compute_time_limit_min,
    format_gres,
    is_pinned,
    merge_slurm_options,
)
from campaign.plan.past_costs import CampaignCosts, LeaseCost, ShapeValues
from campaign.spec.cell import Cell, Configuration
from campaign.spec.lease_plan import LeaseCharge
from campaign.spec.operation_times import Operation, OperationTimes
from campaign.spec.site_hardware import expand_host_names
from campaign.spec.system_file import SlurmOptions, SystemFile

CostPart = Literal["composing", "queue", "start", "runs", "release"]
"""Parts of a lease's duration. `runs` includes the time between runs."""
PARTS: tuple[CostPart, ...] = get_args(CostPart)
_JOB_PARTS: frozenset[CostPart] = frozenset({"start", "runs"})
_LEASE_DURATIONS: Mapping[str, Callable[[LeaseCost], float | None]] = {
    "composing": lambda lease: lease.compose_s,
    "queue": lambda lease: lease.queue_s,
    "start": lambda lease: lease.start_s,
    "between": lambda lease: lease.between_s,
    "release": lambda lease: lease.end_s,
}
MIN_FORECAST_RATIOS = 5
"""Minimum number of ended leases with a forecast from which the interval is computed."""
DEFAULT_FACTOR = 2.0
_LOW_QUANTILE, _HIGH_QUANTILE = 0.025, 0.975


@dataclass(frozen=True)
class LeaseWork:
    """Work of one lease: the number of missing runs per cell, and the operations that compose the lease (None if unknown)."""

    configuration: Configuration
    runs: Sequence[tuple[Cell, int]]
    operations: OperationCounts | None = None

    @property
    def run_count(self) -> int:
        return sum(count for _, count in self.runs)


@dataclass(frozen=True)
class Estimate:
    """An expected duration (seconds) with its interval; None if unknown."""

    expected_s: float | None
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class LeaseForecastParts(Estimate):
    """Expected duration of a lease, with its parts and its basis."""

    parts: Mapping[CostPart, float | None] = field(default_factory=lambda: dict.fromkeys(PARTS))
    basis: str = ""


NO_WORK_FORECAST = LeaseForecastParts(0.0, 0.0, 0.0, dict.fromkeys(PARTS, 0.0), "nothing to do")


@dataclass(frozen=True)
class UnknownDurations:
    """Leases and runs whose duration could not be forecast.

    Args:
        runs: number of runs of unknown duration, by workload and device model.
        leases: number of leases of unknown composition time.
    """

    runs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    leases: int = 0

    def __bool__(self) -> bool:
        return bool(self.runs or self.leases)

    @property
    def run_count(self) -> int:
        return sum(self.runs.values())

    def format_summary(self) -> str:
        """Describe the unknown durations, such as '960 runs of unknown duration (no earlier run of bert-large on a100 ..)'."""
        names = [f"{workload} on {device}" for workload, device in sorted(self.runs)]
        kinds = f"no earlier run of {shorten_names(names)} with this kind of fabric"
        runs = f"{pluralize(self.run_count, 'run')} of unknown duration ({kinds})"
        lease_text = f"{pluralize(self.leases, 'lease')} of unknown composition time"
        return " and ".join(words for words, is_present in ((runs, self.runs), (lease_text, self.leases)) if is_present)

    def suggest_remedy(self) -> str:
        """Suggest how to obtain the missing durations."""
        prior = "set `run_s` in the workload file, " if self.runs else ""
        return f"{prior}learn from other results (--learn-from), or measure a few cells first (--where)"


class CostModel:
    """Forecast of the durations of a campaign's leases by medians of earlier durations."""

    def __init__(
        self,
        fabrics: Mapping[str, str],
        past_costs: Sequence[CampaignCosts] = (),
        priors: Mapping[str, float] | None = None,
        operation_times: Callable[[str], OperationTimes | None] = lambda _: None,
    ) -> None:
        """Collect the earlier durations.

        Args:
            fabrics: kind of fabric of each system.
            past_costs: durations of earlier runs and leases.
            priors: duration (seconds) of a run by workload, from the workload files.
            operation_times: function that returns recorded times of a system's fabric operations.
        """
        self._fabrics, self._priors, self._recorded = fabrics, priors or {}, cache(operation_times)
        self._seconds: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        self._medians: dict[tuple[object, ...], float] = {}
        self._campaigns: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.time_sources: dict[str, None] = {}
        kinds, ratios = set(fabrics.values()), []
        for costs in past_costs:
            for cell in costs.cells:
                kind = (costs.fabric, cell.workload, str(cell.shape["device"]))
                self._seconds["cell", cell.cell_id] += cell.seconds
                if cell.believed:
                    self._seconds[*kind] += cell.seconds
                    self._seconds[*kind, _count_ranks(cell.shape)] += cell.seconds
                    self._campaigns[kind].add(costs.campaign)
                self._counts[costs.campaign, "runs"] += cell.runs
            for lease in costs.leases:
                for name, recorded_s in _LEASE_DURATIONS.items():
                    if (seconds := recorded_s(lease)) is not None:
                        self._seconds[costs.fabric, name] += [seconds]
                        self._seconds[costs.fabric, name, _count_moved_devices(lease.shape)] += [seconds]
            self._counts[costs.campaign, "leases"] += len(costs.leases)
            ratios += [lease.off for lease in costs.leases if lease.off is not None and costs.fabric in kinds]
        self.ratio_count = len(ratios)
        self.factors = compute_interval_factors(ratios)

    def forecast(self, work: LeaseWork) -> LeaseForecastParts:
        """Return the expected duration of a lease."""
        if not work.run_count:
            return NO_WORK_FORECAST
        configuration, moved_devices = work.configuration, _count_moved_devices(work.configuration.shape())
        fabric = self._fabrics.get(configuration.system, "")

        def lease_median(name: str) -> float | None:
            return self._find_median((fabric, name, moved_devices), (fabric, name))

        runs_s, bases = (work.run_count - 1) * (lease_median("between") or 0.0), dict[str, None]()
        known_runs = [(self.estimate_run_s(cell), count) for cell, count in work.runs]
        for (seconds, basis), count in known_runs:
            bases[basis] = None
            runs_s += math.nan if seconds is None else count * seconds
        parts: dict[CostPart, float | None] = {
            "composing": self._estimate_moving_s("composing", fabric, moved_devices, work),
            "queue": lease_median("queue") or 0.0,
            "start": lease_median("start") or 0.0,
            "runs": None if math.isnan(runs_s) else runs_s,
            "release": self._estimate_moving_s("release", fabric, moved_devices, work),
        }
        known_parts = [seconds for seconds in parts.values() if seconds is not None]
        if len(known_parts) < len(parts):
            return LeaseForecastParts(None, parts=parts, basis="; ".join(bases))
        return LeaseForecastParts(*self.add_interval(sum(known_parts)), parts, "; ".join(bases))

    def add_interval(self, seconds: float) -> tuple[float, float, float]:
        """Return a time in seconds, followed by the lower and upper ends of its interval."""
        low, high = self.factors
        return seconds, low * seconds, high * seconds

    def estimate_run_s(self, cell: Cell) -> tuple[float | None, str]:
        """Return the expected duration (seconds) of a cell's run, or None, and the basis of the estimate."""
        device, ranks = cell.configuration.device, cell.configuration.ranks
        kind = (self._fabrics.get(cell.configuration.system, ""), cell.workload, device)
        prior = self._priors.get(cell.workload)
        for key, basis in (
            (("cell", cell.id), "earlier runs of these cells"),
            ((*kind, ranks), "earlier runs of the workload on the same number of devices"),
            (kind, "earlier runs of the workload"),
        ):
            if (seconds := self._find_median(key)) is not None:
                return min(seconds, cell.settings.time_limit_s), basis
        if prior is not None:
            return min(prior, cell.settings.time_limit_s), "the workload file"
        return None, f"no run of {cell.workload} yet"

    def count_unknown(self, works: Iterable[LeaseWork]) -> UnknownDurations:
        """Count the runs and leases whose duration is unknown."""
        runs, leases = Counter[tuple[str, str]](), 0
        for work in works:
            for cell, count in work.runs:
                if self.estimate_run_s(cell)[0] is None:
                    runs[cell.workload, cell.configuration.device] += count
            leases += self.forecast(work).parts["composing"] is None
        return UnknownDurations(runs, leases)

    def describe_sources(self, works: Iterable[LeaseWork]) -> str:
        """Describe the earlier runs of the leases' workloads. Returns an empty string if there are none."""
        kinds = {
            (self._fabrics.get(work.configuration.system, ""), cell.workload, work.configuration.device)
            for work in works
            for cell, _ in work.runs
        }
        names = sorted({name for kind in kinds for name in self._campaigns.get(kind, ())})
        if not names:
            return ""
        runs, leases = (sum(self._counts[name, count_name] for name in names) for count_name in ("runs", "leases"))
        return (
            f"{pluralize(runs, 'run')} and {pluralize(leases, 'lease')} of the "
            f"campaign{'s' * (len(names) > 1)} {shorten_names(names)}"
        )

    def _find_median(self, *keys: tuple[object, ...]) -> float | None:
        """Return the median of the first key with durations, or None if no key has any."""
        for key in keys:
            if key in self._medians:
                return self._medians[key]
            if seconds := self._seconds.get(key):
                self._medians[key] = median(seconds)
                return self._medians[key]
        return None

    def _estimate_moving_s(
        self, part: Literal["composing", "release"], fabric: str, moved_devices: int, work: LeaseWork
    ) -> float | None:
        """Estimate the time (seconds) to compose or release this number of devices, or return None if unknown."""
        if (seconds := self._find_median((fabric, part, moved_devices))) is not None:
            return seconds
        if not moved_devices:
            return 0.0
        times = self._recorded(work.configuration.system)
        if times is None or work.operations is None:
            return None
        steps = load_fabric_kind(fabric).steps or OperationSteps()
        seconds = _sum_medians_s(
            times, work.operations if part == "composing" else derive_release(work.operations, steps)
        )
        if seconds is not None:
            self.time_sources[times.source] = None
        return seconds


def compute_interval_factors(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the factors by which a median is multiplied to get both ends of its interval.

    Args:
        ratios: actual over expected duration of ended leases. For fewer than `MIN_FORECAST_RATIOS` values, the factor is 2.
    """
    if len(ratios) < MIN_FORECAST_RATIOS:
        return 1 / DEFAULT_FACTOR, DEFAULT_FACTOR
    sorted_ratios = sorted(ratios)

    def interpolate_quantile(share: float) -> float:
        place = min(max(share * (len(sorted_ratios) + 1) - 1, 0.0), len(sorted_ratios) - 1.0)
        low = math.floor(place)
        return sorted_ratios[low] + (place - low) * (sorted_ratios[math.ceil(place)] - sorted_ratios[low])

    return min(1.0, interpolate_quantile(_LOW_QUANTILE)), max(1.0, interpolate_quantile(_HIGH_QUANTILE))


def build_cost_model(campaign: Campaign, past_costs: Sequence[CampaignCosts]) -> CostModel:
    """Build the cost model of a campaign from durations of earlier runs and leases."""
    parts = {part.part: part for part in campaign.parts}
    fabrics = {name: str(part.system.fabric["kind"]) for name, part in parts.items()}
    priors = {name: file.run_s for name, file in campaign.workloads.items() if file.run_s is not None}
    return CostModel(fabrics, past_costs, priors, lambda name: _find_operation_times(parts[name]))


def _find_operation_times(campaign: Campaign) -> OperationTimes | None:
    """Return recorded times of the operations of a system's fabric, or None if there are none.

    Readings are doubled if the fabric confirms each reading by another one.
    """
    system = campaign.system
    kind = load_fabric_kind(str(system.fabric["kind"]))
    times = find_recorded_times(system, campaign.system_source.path)
    if times is None or system.times or not (kind.steps or OperationSteps()).confirms_readings:
        return times
    return times.double_readings(float(system.fabric.get("poll_s", 0.0)))


def derive_release(composing: OperationCounts, steps: OperationSteps) -> OperationCounts:
    """Derive the operations of a release from the operations of a composition."""
    return OperationCounts({
        (name, device, box): count * steps.detach.count(name)
        for (operation, device, box), count in composing.counts.items()
        for name in steps.detach
        if operation == "attach"
    })  # fmt: skip


def _sum_medians_s(times: OperationTimes, operations: OperationCounts) -> float | None:
    """Return the sum of the medians of these operations, or None if one of them was never timed."""
    total_s = 0.0
    for (name, device, _), count in operations.counts.items():
        seconds = _find_median_s(times, name, device)
        if seconds is None and name != "rest":
            return None
        total_s += count * (seconds or 0.0)
    return total_s


def _find_median_s(times: OperationTimes, operation: Operation, device: str) -> float | None:
    """Return the median of an operation on a kind of device, or on any device if there is none for that kind."""
    seconds = times.select_seconds(operation, device) or times.select_seconds(operation)
    return median(seconds) if seconds else None


def _count_ranks(shape: ShapeValues) -> int:
    return int(shape["hosts"]) * int(shape["devices_used"])


def _count_moved_devices(shape: ShapeValues) -> int:
    """Count the devices and drives that the fabric attaches for a lease of this hardware."""
    hosts, devices = int(shape["hosts"]), int(shape["devices_per_host"]) - int(shape["local_devices_per_host"])
    return hosts * (devices + (shape.get("storage") == "fabric-nvme"))


def needs_fabric(configuration: Configuration) -> bool:
    """Return whether the fabric moves devices to compose the configuration."""
    return _count_moved_devices(configuration.shape()) > 0


@dataclass(frozen=True)
class _HeldHardware:
    """Numbers of devices and hosts that a lease holds for its whole duration, or only during its driver's job."""

    devices: float
    devices_in_job: float
    hosts: float
    hosts_in_job: float
    idle: float
    donors: int


class ChargeCalculator:
    """Calculator of the charge of a lease, from the hardware that it holds and the request of its allocation."""

    def __init__(self, campaign: Campaign, placements: Mapping[str, PlannedPlacement]) -> None:
        self._campaign = campaign
        self._hosts = {name: placement.hosts for name, placement in placements.items()}
        self._options: dict[str, SlurmOptions] = {}
        self._held: dict[str, _HeldHardware] = {}

    def __call__(self, work: LeaseWork, forecast: LeaseForecastParts) -> LeaseCharge:
        """Return the charge of a lease for its work."""
        configuration = work.configuration
        system, hosts = self._campaign.part_on(configuration).system, self._hosts.get(configuration.name, ())
        by_slurm = system.launcher == "slurm"
        if configuration.name not in self._held:
            self._held[configuration.name] = _find_held_hardware(system, configuration, hosts)
            self._options[configuration.name] = (
                merge_slurm_options(system, configuration, self._campaign.person) if by_slurm else SlurmOptions()
            )
        hardware, options, time_min = self._held[configuration.name], self._options[configuration.name], None
        if by_slurm:
            longest_s = sum(cell.settings.time_limit_s * count for cell, count in work.runs)
            time_min = options.time_min or compute_time_limit_min(forecast.parts["runs"], longest_s)
        device_hours = host_hours = price = None
        if forecast.expected_s is not None:
            in_job_s = sum(forecast.parts[part] or 0.0 for part in _JOB_PARTS)
            device_hours = round(
                (hardware.devices * forecast.expected_s + hardware.devices_in_job * in_job_s) / 3600, 6
            )
            host_hours = round((hardware.hosts * forecast.expected_s + hardware.hosts_in_job * in_job_s) / 3600, 6)
            price_per_h = system.compute_price_per_h(configuration) if self._campaign.currency else None
            price = price_per_h and round(device_hours * price_per_h / configuration.devices, 6)
        return LeaseCharge(
            hosts=configuration.hosts,
            donors=hardware.donors,
            devices=hardware.devices + hardware.devices_in_job,
            devices_idle=hardware.idle,
            partition=options.partition or "",
            time_limit_min=time_min,
            gres=format_gres(system, configuration, hosts if is_pinned(system) else ()) if by_slurm else "",
            exclusive=by_slurm and system.slurm.exclusive,
            device_hours=device_hours,
            host_hours=host_hours,
            price=price,
        )


def _find_held_hardware(system: SystemFile, configuration: Configuration, hosts: Collection[str]) -> _HeldHardware:
    """Return the hardware that a lease on these hosts holds.

    Args:
        system: the system file.
        configuration: configuration of the lease.
        hosts: names of the hosts; empty if unknown.
    """
    pooled = configuration.fabric_devices
    built_in_devices = used_built_in = configuration.devices - pooled
    donors, idle = _find_donors(system, configuration, hosts)
    by_slurm = system.launcher == "slurm"
    if by_slurm and system.slurm.exclusive:
        built_in = {
            name: sum(device.count for device in group.devices if device.kind == "gpu")
            for group in system.hosts
            for name in group.list_names()
        }
        built_in_devices = max(used_built_in, sum(built_in.get(name, 0) for name in hosts))
        idle += sum(built_in[name] for name in donors)
    in_job = by_slurm and system.slurm.strategy == "static"
    return _HeldHardware(
        devices=pooled + idle + built_in_devices * (not in_job),
        devices_in_job=built_in_devices * in_job,
        hosts=len(donors) + configuration.hosts * (not in_job),
        hosts_in_job=configuration.hosts * in_job,
        idle=idle + built_in_devices - used_built_in + configuration.devices - configuration.ranks,
        donors=len(donors),
    )


def _find_donors(system: SystemFile, configuration: Configuration, hosts: Collection[str]) -> tuple[set[str], int]:
    """Return the hosts that the lease borrows pooled devices from, and the number of pooled devices left idle on them."""
    needed = Counter({configuration.device: configuration.fabric_devices})
    donors: set[str] = set()
    idle = 0
    # Devices without a home, or with a home among the lease's hosts, are counted first, so that a site is charged the minimum.
    for entry in sorted((entry for entry in system.pool if needed[entry.model]), key=lambda entry: bool(entry.home)):
        if entry.home is None:
            needed[entry.model] -= min(needed[entry.model], entry.count)
            continue
        names = expand_host_names(entry.home)
        count = math.ceil(entry.count / len(names))
        for name in sorted(names, key=lambda name: name not in hosts):
            borrowed = min(count, needed[entry.model])
            needed[entry.model] -= borrowed
            if borrowed and name not in hosts:
                donors.add(name)
                idle += count - borrowed
    return donors, idle
