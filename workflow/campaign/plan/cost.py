"""What a campaign will take and cost: medians of what earlier runs and leases took, or unknown. Pure.

A run takes the median of earlier runs of its cell; else of its workload on as many devices; else of its workload; else what the
workload file says (`run_s`); else its time is unknown. Other cells count if they ran on the same model of device behind the same
kind of fabric. Composing and the release take the median of earlier leases with as many devices of the same kind of fabric, else
recorded times of the fabric's operations. What else a lease takes (its queue, its start, the time between runs) is a median of
leases, and counts as nothing before the first one.

A lease holds its pooled devices all the time, and hosts that lend devices (`home` of a pool entry) with what is left on them. It
holds its hosts and their own devices all the time too, except under Slurm with `strategy: static`, where it holds them while the
driver's job runs. Where allocations are exclusive, it holds all devices of its hosts.
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
from campaign.plan.campaign.open_fabric import PlannedPlacement, recorded_times
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import gres_of, is_pinned, options_of, time_limit_min
from campaign.plan.past_costs import Costs, LeaseCost, ShapeValues
from campaign.spec.cell import Cell, Configuration
from campaign.spec.lease_plan import LeaseCharge
from campaign.spec.operation_times import Operation, OperationTimes
from campaign.spec.site_hardware import expand_host_names
from campaign.spec.system_file import SlurmOptions, SystemFile

CostPart = Literal["composing", "queue", "start", "runs", "release"]
"""What a lease's time is made of. `runs` includes the time between them."""
PARTS: tuple[CostPart, ...] = get_args(CostPart)
_JOB_PARTS: frozenset[CostPart] = frozenset({"start", "runs"})
_RECORDED: Mapping[str, Callable[[LeaseCost], float | None]] = {
    "composing": lambda lease: lease.compose_s,
    "queue": lambda lease: lease.queue_s,
    "start": lambda lease: lease.start_s,
    "between": lambda lease: lease.between_s,
    "release": lambda lease: lease.end_s,
}
MIN_OFFS = 5
"""So many leases with a forecast have to end before the interval follows from how far these forecasts were off."""
DEFAULT_FACTOR = 2.0
_LOW_SHARE, _HIGH_SHARE = 0.025, 0.975


@dataclass(frozen=True)
class Work:
    """Work of one lease: the number of missing runs per cell, and the operations that compose the lease.

    operations: None if unknown.
    """

    configuration: Configuration
    runs: Sequence[tuple[Cell, int]]
    operations: OperationCounts | None = None

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)


@dataclass(frozen=True)
class Estimate:
    """An expected duration (seconds) with its interval; None if unknown."""

    expected_s: float | None
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class Expected(Estimate):
    """Expected duration of a lease, with its parts and its basis."""

    parts: Mapping[CostPart, float | None] = field(default_factory=lambda: dict.fromkeys(PARTS))
    basis: str = ""


NOTHING = Expected(0.0, 0.0, 0.0, dict.fromkeys(PARTS, 0.0), "nothing to do")


@dataclass(frozen=True)
class Unknown:
    """Durations that a forecast lacks.

    runs: number of runs of unknown duration, by workload and device model; composed: number of leases of unknown composition
    time.
    """

    runs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    composed: int = 0

    def __bool__(self) -> bool:
        return bool(self.runs or self.composed)

    @property
    def run_count(self) -> int:
        return sum(self.runs.values())

    def words(self) -> str:
        """Describe the unknown durations, as '960 runs of unknown duration (no earlier run of bert-large on a100 with this kind
        of fabric)'.
        """
        names = [f"{workload} on {device}" for workload, device in sorted(self.runs)]
        kinds = f"no earlier run of {shorten_names(names)} with this kind of fabric"
        runs = f"{pluralize(self.run_count, 'run')} of unknown duration ({kinds})"
        composed = f"{pluralize(self.composed, 'lease')} of unknown composition time"
        return " and ".join(words for words, there in ((runs, self.runs), (composed, self.composed)) if there)

    def advice(self) -> str:
        """Suggest how to get the missing durations."""
        prior = "give `run_s` in the workload's file, " if self.runs else ""
        return f"{prior}learn from other results (--learn-from), or measure a few cells first (--where)"


class CostModel:
    """Forecast of the durations of a campaign's leases by medians of earlier durations."""

    def __init__(
        self,
        fabrics: Mapping[str, str],
        known: Sequence[Costs] = (),
        priors: Mapping[str, float] | None = None,
        recorded: Callable[[str], OperationTimes | None] = lambda _: None,
    ) -> None:
        """Collect the earlier durations.

        Args:
            fabrics: kind of fabric of each system.
            past_costs: durations of earlier runs and leases.
            priors: duration (seconds) of a run by workload, if the workload's file gives it.
            operation_times: function that returns recorded times of a system's fabric operations.
        """
        self._fabrics, self._priors, self._recorded = fabrics, priors or {}, cache(recorded)
        self._seconds: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        self._medians: dict[tuple[object, ...], float] = {}
        self._campaigns: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.composing_from: dict[str, None] = {}
        kinds, offs = set(fabrics.values()), []
        for costs in known:
            for cell in costs.cells:
                kind = (costs.fabric, cell.workload, str(cell.shape["device"]))
                self._seconds["cell", cell.cell_id] += cell.seconds
                if cell.believed:
                    self._seconds[*kind] += cell.seconds
                    self._seconds[*kind, _rank_count(cell.shape)] += cell.seconds
                    self._campaigns[kind].add(costs.campaign)
                self._counts[costs.campaign, "runs"] += cell.runs
            for lease in costs.leases:
                for name, recorded_s in _RECORDED.items():
                    if (seconds := recorded_s(lease)) is not None:
                        self._seconds[costs.fabric, name] += [seconds]
                        self._seconds[costs.fabric, name, _moved_count(lease.shape)] += [seconds]
            self._counts[costs.campaign, "leases"] += len(costs.leases)
            offs += [lease.off for lease in costs.leases if lease.off is not None and costs.fabric in kinds]
        self.offs = len(offs)
        self.factors = interval_factors(offs)

    def forecast(self, work: Work) -> Expected:
        """Return the expected duration of a lease."""
        if not work.count:
            return NOTHING
        configuration, moved = work.configuration, _moved_count(work.configuration.shape())
        fabric = self._fabrics.get(configuration.system, "")

        def beside(name: str) -> float | None:
            return self._median((fabric, name, moved), (fabric, name))

        runs_s, bases = (work.count - 1) * (beside("between") or 0.0), dict[str, None]()
        known_runs = [(self.run_s(cell), count) for cell, count in work.runs]
        for (seconds, basis), count in known_runs:
            bases[basis] = None
            runs_s += math.nan if seconds is None else count * seconds
        parts: dict[CostPart, float | None] = {
            "composing": self._moving_s("composing", fabric, moved, work),
            "queue": beside("queue") or 0.0,
            "start": beside("start") or 0.0,
            "runs": None if math.isnan(runs_s) else runs_s,
            "release": self._moving_s("release", fabric, moved, work),
        }
        known = [seconds for seconds in parts.values() if seconds is not None]
        if len(known) < len(parts):
            return Expected(None, parts=parts, basis="; ".join(bases))
        return Expected(*self.estimate(sum(known)), parts, "; ".join(bases))

    def estimate(self, seconds: float) -> tuple[float, float, float]:
        """Return a time (seconds) with both ends of its interval."""
        low, high = self.factors
        return seconds, low * seconds, high * seconds

    def run_s(self, cell: Cell) -> tuple[float | None, str]:
        """Return the expected duration (seconds) of a cell's run, or None, and the basis of the estimate."""
        device, ranks = cell.configuration.device, cell.configuration.ranks
        kind = (self._fabrics.get(cell.configuration.system, ""), cell.workload, device)
        prior = self._priors.get(cell.workload)
        for key, basis in (
            (("cell", cell.id), "earlier runs of these cells"),
            ((*kind, ranks), "earlier runs of the workload on as many devices"),
            (kind, "earlier runs of the workload"),
        ):
            if (seconds := self._median(key)) is not None:
                return min(seconds, cell.settings.time_limit_s), basis
        if prior is not None:
            return min(prior, cell.settings.time_limit_s), "the workload's file"
        return None, f"no run of {cell.workload} yet"

    def unknown(self, works: Iterable[Work]) -> Unknown:
        """Count the runs and leases whose duration is unknown."""
        runs, composed = Counter[tuple[str, str]](), 0
        for work in works:
            for cell, count in work.runs:
                if self.run_s(cell)[0] is None:
                    runs[cell.workload, cell.configuration.device] += count
            composed += self.forecast(work).parts["composing"] is None
        return Unknown(runs, composed)

    def learned_from(self, works: Iterable[Work]) -> str:
        """Describe the earlier runs of the workloads of some leases. Returns '' if there are none."""
        kinds = {
            (self._fabrics.get(work.configuration.system, ""), cell.workload, work.configuration.device)
            for work in works
            for cell, _ in work.runs
        }
        names = sorted({name for kind in kinds for name in self._campaigns.get(kind, ())})
        if not names:
            return ""
        runs, leases = (sum(self._counts[name, what] for name in names) for what in ("runs", "leases"))
        return (
            f"{pluralize(runs, 'run')} and {pluralize(leases, 'lease')} of the "
            f"campaign{'s' * (len(names) > 1)} {shorten_names(names)}"
        )

    def _median(self, *keys: tuple[object, ...]) -> float | None:
        """Return the median of the first key with times; None if none has any."""
        for key in keys:
            if key in self._medians:
                return self._medians[key]
            if seconds := self._seconds.get(key):
                self._medians[key] = median(seconds)
                return self._medians[key]
        return None

    def _moving_s(self, part: Literal["composing", "release"], fabric: str, moved: int, work: Work) -> float | None:
        """Estimate the time (seconds) to compose or release this number of devices, or return None if unknown."""
        if (seconds := self._median((fabric, part, moved))) is not None:
            return seconds
        if not moved:
            return 0.0
        times = self._recorded(work.configuration.system)
        if times is None or work.operations is None:
            return None
        steps = load_fabric_kind(fabric).steps or OperationSteps()
        seconds = _operations_s(times, work.operations if part == "composing" else release_of(work.operations, steps))
        if seconds is not None:
            self.composing_from[times.source] = None
        return seconds


def interval_factors(offs: Sequence[float]) -> tuple[float, float]:
    """Return the factors by which a median is multiplied for both ends of its interval.

    Args:
        ratios: actual over expected time of leases that ended. Fewer than `MIN_FORECAST_RATIOS` values give a factor of 2.
    """
    if len(offs) < MIN_OFFS:
        return 1 / DEFAULT_FACTOR, DEFAULT_FACTOR
    ordered = sorted(offs)

    def quantile(share: float) -> float:
        place = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
        low = math.floor(place)
        return ordered[low] + (place - low) * (ordered[math.ceil(place)] - ordered[low])

    return min(1.0, quantile(_LOW_SHARE)), max(1.0, quantile(_HIGH_SHARE))


def cost_model(campaign: Campaign, known: Sequence[Costs]) -> CostModel:
    """Build the cost model of a campaign.

    Args:
        campaign: the campaign.
        past_costs: durations of earlier runs and leases.
    """
    parts = {part.part: part for part in campaign.parts}
    fabrics = {name: str(part.system.fabric["kind"]) for name, part in parts.items()}
    priors = {name: file.run_s for name, file in campaign.workloads.items() if file.run_s is not None}
    return CostModel(fabrics, known, priors, lambda name: _recorded_as_read(parts[name]))


def _recorded_as_read(campaign: Campaign) -> OperationTimes | None:
    """Return recorded times of the operations of a system's fabric, as that fabric reads its states; None without any."""
    system = campaign.system
    kind = load_fabric_kind(str(system.fabric["kind"]))
    times = recorded_times(system, campaign.system_source.path)
    if times is None or system.times or not (kind.steps or OperationSteps()).confirms_readings:
        return times
    return times.read_twice(float(system.fabric.get("poll_s", 0.0)))


def release_of(composing: OperationCounts, steps: OperationSteps) -> OperationCounts:
    """Derive the operations that detach what some composing operations attach."""
    return OperationCounts({
        (name, device, box): count * steps.detach.count(name)
        for (operation, device, box), count in composing.counts.items()
        for name in steps.detach
        if operation == "attach"
    })  # fmt: skip


def _operations_s(times: OperationTimes, operations: OperationCounts) -> float | None:
    """Return the sum of the medians of some operations; None if one was never timed."""
    whole = 0.0
    for (name, device, _), count in operations.counts.items():
        seconds = _median_s(times, name, device)
        if seconds is None and name != "rest":
            return None
        whole += count * (seconds or 0.0)
    return whole


def _median_s(times: OperationTimes, operation: Operation, device: str) -> float | None:
    """Return the median of an operation on a kind of device, else on any."""
    seconds = times.seconds(operation, device) or times.seconds(operation)
    return median(seconds) if seconds else None


def _rank_count(shape: ShapeValues) -> int:
    return int(shape["hosts"]) * int(shape["devices_used"])


def _moved_count(shape: ShapeValues) -> int:
    """Return how many devices and drives of the fabric a lease of this hardware attaches."""
    hosts, devices = int(shape["hosts"]), int(shape["devices_per_host"]) - int(shape["local_devices_per_host"])
    return hosts * (devices + (shape.get("storage") == "fabric-nvme"))


def needs_fabric(configuration: Configuration) -> bool:
    """Return whether composing moves devices."""
    return _moved_count(configuration.shape()) > 0


@dataclass(frozen=True)
class _HeldHardware:
    """Numbers of devices and hosts that a lease holds for its whole duration, or only during its driver's job."""

    devices: float
    devices_in_job: float
    hosts: float
    hosts_in_job: float
    idle: float
    donors: int


class Charges:
    """Calculator of the charge of a lease, from the hardware that it holds and the request of its allocation."""

    def __init__(self, campaign: Campaign, placements: Mapping[str, PlannedPlacement]) -> None:
        self._campaign = campaign
        self._hosts = {name: placement.hosts for name, placement in placements.items()}
        self._options: dict[str, SlurmOptions] = {}
        self._held: dict[str, _HeldHardware] = {}

    def __call__(self, work: Work, expected: Expected) -> LeaseCharge:
        """Return the charge of a lease for its work."""
        configuration = work.configuration
        system, hosts = self._campaign.on(configuration).system, self._hosts.get(configuration.name, ())
        by_slurm = system.launcher == "slurm"
        if configuration.name not in self._held:
            self._held[configuration.name] = _held_by(system, configuration, hosts)
            self._options[configuration.name] = (
                options_of(system, configuration, self._campaign.person) if by_slurm else SlurmOptions()
            )
        held, options, time_min = self._held[configuration.name], self._options[configuration.name], None
        if by_slurm:
            longest_s = sum(cell.settings.time_limit_s * count for cell, count in work.runs)
            time_min = options.time_min or time_limit_min(expected.parts["runs"], longest_s)
        device_hours = host_hours = price = None
        if expected.expected_s is not None:
            in_job_s = sum(expected.parts[part] or 0.0 for part in _JOB_PARTS)
            device_hours = round((held.devices * expected.expected_s + held.devices_in_job * in_job_s) / 3600, 6)
            host_hours = round((held.hosts * expected.expected_s + held.hosts_in_job * in_job_s) / 3600, 6)
            price_per_h = system.price_per_h(configuration) if self._campaign.currency else None
            price = price_per_h and round(device_hours * price_per_h / configuration.devices, 6)
        return LeaseCharge(
            hosts=configuration.hosts,
            donors=held.donors,
            devices=held.devices + held.devices_in_job,
            devices_idle=held.idle,
            partition=options.partition or "",
            time_limit_min=time_min,
            gres=gres_of(system, configuration, hosts if is_pinned(system) else ()) if by_slurm else "",
            exclusive=by_slurm and system.slurm.exclusive,
            device_hours=device_hours,
            host_hours=host_hours,
            price=price,
        )


def _held_by(system: SystemFile, configuration: Configuration, hosts: Collection[str]) -> _HeldHardware:
    """Return the hardware that a lease on these hosts holds.

    Args:
        system: the system file.
        configuration: configuration of the lease.
        hosts: names of the hosts; empty if unknown.
    """
    attached = configuration.fabric_devices
    own = used = configuration.devices - attached
    donors, left = _donors(system, configuration, hosts)
    by_slurm = system.launcher == "slurm"
    if by_slurm and system.slurm.exclusive:
        built_in = {
            name: sum(each.count for each in group.devices if each.kind == "gpu")
            for group in system.hosts
            for name in group.names()
        }
        own = max(used, sum(built_in.get(name, 0) for name in hosts))
        left += sum(built_in[name] for name in donors)
    in_job = by_slurm and system.slurm.strategy == "static"
    return _HeldHardware(
        devices=attached + left + own * (not in_job),
        devices_in_job=own * in_job,
        hosts=len(donors) + configuration.hosts * (not in_job),
        hosts_in_job=configuration.hosts * in_job,
        idle=left + own - used + configuration.devices - configuration.ranks,
        donors=len(donors),
    )


def _donors(system: SystemFile, configuration: Configuration, hosts: Collection[str]) -> tuple[set[str], int]:
    """Return the hosts that the lease borrows pooled devices from, and the number of pooled devices left idle on them."""
    wanted = Counter({configuration.device: configuration.fabric_devices})
    donors: set[str] = set()
    left = 0
    # Devices that belong to no host, or to one of the lease's own, are counted first: a site is charged no more than it must.
    for entry in sorted((entry for entry in system.pool if wanted[entry.model]), key=lambda entry: bool(entry.home)):
        if entry.home is None:
            wanted[entry.model] -= min(wanted[entry.model], entry.count)
            continue
        names = expand_host_names(entry.home)
        count = math.ceil(entry.count / len(names))
        for name in sorted(names, key=lambda name: name not in hosts):
            taken = min(count, wanted[entry.model])
            wanted[entry.model] -= taken
            if taken and name not in hosts:
                donors.add(name)
                left += count - taken
    return donors, left
