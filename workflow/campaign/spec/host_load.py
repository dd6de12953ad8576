"""Load of a host during a run, by the processes of the campaign and by other programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from campaign.common.wording import pluralize
from campaign.spec.fields import ClosedModel

MAX_FOREIGN_LOAD_PCT = 5.0
"""Share of a host's cores above which the load by other programs is flagged."""
FOREIGN_LOAD_FLAG = f"foreign load: other programs used more than {MAX_FOREIGN_LOAD_PCT:g} % of a host's cores"


class HostLoad(ClosedModel):
    """Load of a host in the measured window of a run, or in the whole run if it has no such window.

    Attributes:
        host: name of the host.
        own_s: processor time of the campaign's processes, in seconds.
        foreign_s: processor time of all other programs, in seconds.
        own_pct: `own_s` as a share of the time of all cores, in percent.
        foreign_pct: `foreign_s` as a share of the time of all cores, in percent.
    """

    host: str
    own_s: float
    foreign_s: float
    own_pct: float
    foreign_pct: float

    @property
    def has_foreign_load(self) -> bool:
        """True if other programs used too much of the cores."""
        return self.foreign_pct > MAX_FOREIGN_LOAD_PCT


def describe_foreign_load(loads_by_run: Iterable[Sequence[HostLoad]]) -> str:
    """Describe the load by other programs during runs in a sentence, or return an empty string if it is unknown for all of them.

    Args:
        loads_by_run: loads of the hosts of each run; empty for a run whose load is unknown.
    """
    loads = list(loads_by_run)
    shares_pct = [max(load.foreign_pct for load in run_loads) for run_loads in loads if run_loads]
    if not shares_pct:
        return ""
    high_count, unknown_count = sum(share > MAX_FOREIGN_LOAD_PCT for share in shares_pct), len(loads) - len(shares_pct)
    unknown_text = f" The load is unknown for {pluralize(unknown_count, 'run')}." if unknown_count else ""
    return (
        f"Other programs used {median(shares_pct):.2g} % of a host's cores in the median, and more than {MAX_FOREIGN_LOAD_PCT:g} % "
        f"in {high_count} of {pluralize(len(shares_pct), 'run')}.{unknown_text}"
    )
