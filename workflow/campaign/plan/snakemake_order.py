"""Leases start in the order of the plan: Snakemake's schedulers, whichever was chosen, let none pass another one.

By themselves they start whatever fits. Small leases then pass large ones, which are all measured at the end of a campaign, where
drift looks like a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar


class SnakemakeJob(Protocol):
    """A job as Snakemake's schedulers see it."""

    @property
    def priority(self) -> int: ...
    @property
    def scheduler_resources(self) -> Mapping[str, Any]: ...


AnyJob = TypeVar("AnyJob", bound=SnakemakeJob)


def in_order(jobs: Iterable[AnyJob], free: Mapping[str, Any], queues: Collection[str]) -> Iterator[AnyJob]:
    """Jobs that may start now: none that takes of a queue passes one of higher priority that does and has to wait.

    free: what is free of each resource.
    """
    left, closed = dict(free), set[str]()
    for job in sorted(jobs, key=lambda each: -each.priority):
        need = job.scheduler_resources
        own = {name for name in queues if need.get(name)}
        if not own:
            yield job
        elif not own & closed and all(need.get(name, 0) <= amount for name, amount in left.items()):
            left = {name: amount - need.get(name, 0) for name, amount in left.items()}
            yield job
        else:
            closed |= own


class _InOrder:
    """Stands before a scheduler of Snakemake's, which chooses among the jobs whose turn it is."""

    queues = frozenset[str]()
    before_first: Callable[[], None] | None = None

    def select_jobs(
        self,
        selectable_jobs: Collection[Any],
        remaining_jobs: Sequence[Any],
        available_resources: Mapping[str, Any],
        input_sizes: Mapping[Any, int],
    ) -> Sequence[Any] | None:
        prepare, _InOrder.before_first = _InOrder.before_first, None
        if prepare:
            prepare()
        may = list(in_order(selectable_jobs, available_resources, _InOrder.queues))
        if not may:
            return []
        chosen: Sequence[Any] | None = super().select_jobs(may, remaining_jobs, available_resources, input_sizes)  # type: ignore[misc]
        return chosen


def keep_order(queues: Collection[str], before_first: Callable[[], None] | None = None) -> None:
    """Have jobs that take of these resources start, from now on, in the order of their priorities, under every scheduler.

    before_first: is called once, before the first job is selected, also where the workflow is a module, whose `onstart` Snakemake
    does not take over. Snakemake's own handlers of signals are in place by then.
    """
    from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

    _InOrder.queues |= frozenset(queues)
    _InOrder.before_first = before_first
    for plugin in SchedulerPluginRegistry().plugins.values():
        if not issubclass(plugin.scheduler, _InOrder):
            plugin.scheduler = type("InOrder", (_InOrder, plugin.scheduler), {})
