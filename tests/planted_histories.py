"""Sites whose history is known: cells measured again and again, without a change or with one that was planted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from campaign.statistics.change_points import LEAST, change_points
from campaign.statistics.intervals import Floats


@dataclass(frozen=True)
class Site:
    """lease, campaign: standard deviations of the logarithm, of compositions and of whole campaigns; shared: how many cells stand
    on the same compositions; noisy: how many times as noisy every second group is; heavy: Student's t with 3 degrees of freedom."""

    cells: int = 20
    campaigns: int = 20
    compositions: int = 3
    lease: float = 0.02
    campaign: float = 0.0
    shared: int = 1
    noisy: float = 1.0
    heavy: bool = False

    @property
    def groups(self) -> list[int]:
        return [cell // self.shared for cell in range(self.cells)]

    def histories(self, draw: np.random.Generator) -> Floats:
        """Logarithms by cell, campaign and composition."""
        size = (-(-self.cells // self.shared), self.campaigns, self.compositions)
        noise = draw.standard_t(3, size) / np.sqrt(3) if self.heavy else draw.standard_normal(size)
        noise[1::2] *= self.noisy
        of_groups = self.lease * noise + self.campaign * draw.standard_normal((self.campaigns, 1))
        return np.asarray(of_groups[self.groups])


def false_alarms(site: Site, sites: int, draw: np.random.Generator) -> int:
    """How many sites without a change are said to have one at any look, from the tenth campaign to the last."""
    return sum(_ever(site, site.histories(draw)) for _ in range(sites))


def _ever(site: Site, rows: Floats) -> bool:
    return any(any(change_points(list(rows[:, :k]), site.groups)) for k in range(LEAST, site.campaigns + 1))


def found_within(site: Site, size: float, before: int, within: int, sites: int, draw: np.random.Generator) -> int:
    """How many changes of one cell by `size` (a logarithm) after `before` campaigns are found at one of the next `within` looks."""
    found = 0
    for _ in range(sites):
        rows = site.histories(draw)
        rows[0, before:] += size
        looks = (change_points(list(rows[:, :k]), site.groups)[0] for k in range(before + 1, before + within + 1))
        found += any(
            abs(change.at - before) <= 1 and (change.ratio > 1) == (size > 0) for each in looks for change in each
        )
    return found
