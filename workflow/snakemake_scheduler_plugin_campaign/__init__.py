"""Snakemake scheduler plugin (`--scheduler campaign`) that starts leases in the order of the plan.

Snakemake's own schedulers start any job that fits. Small leases would then overtake large ones, which would all be measured at the
end of a campaign, where drift looks like a difference. Snakemake finds the plugin by the name of this package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from snakemake_interface_scheduler_plugins.base import SchedulerBase


class SnakemakeJob(Protocol):
    """Properties of a job that determine when it starts."""

    @property
    def priority(self) -> int: ...
    @property
    def scheduler_resources(self) -> Mapping[str, Any]: ...


JobType = TypeVar("JobType", bound=SnakemakeJob)


def is_host_resource(name: str) -> bool:
    """Return whether a resource counts the hosts of a system. Every lease on that system needs such hosts."""
    return name == "hosts" or name.endswith("_hosts")


def select_in_order(jobs: Iterable[JobType], available_resources: Mapping[str, Any]) -> list[JobType]:
    """Select the jobs that start now, by priority.

    A lease waits if an earlier lease in the order of the plan waits for hosts of the same system.

    Args:
        jobs: jobs whose inputs are ready.
        available_resources: amount of each resource that is free.
    """
    amounts, blocked_hosts, selection = dict(available_resources), set[str](), list[JobType]()
    for job in sorted(jobs, key=lambda candidate: -candidate.priority):
        needs = job.scheduler_resources
        hosts = {name for name in needs if is_host_resource(name) and needs[name]}
        if not hosts & blocked_hosts and all(needs.get(name, 0) <= amount for name, amount in amounts.items()):
            amounts = {name: amount - needs.get(name, 0) for name, amount in amounts.items()}
            selection.append(job)
        else:
            blocked_hosts |= hosts
    return selection


class Scheduler(SchedulerBase):  # type: ignore[misc]
    """Scheduler without state. While no job runs, all resources are free, so the first lease starts and none waits for ever."""

    def select_jobs(
        self,
        selectable_jobs: Collection[Any],
        remaining_jobs: Sequence[Any],
        available_resources: Mapping[str, Any],
        input_sizes: Mapping[Any, int],
    ) -> Sequence[Any]:
        """Select the jobs that start now."""
        return select_in_order(selectable_jobs, available_resources)
