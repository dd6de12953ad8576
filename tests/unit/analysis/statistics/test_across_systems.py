"""Equally many devices of two systems: what is compared with what, and planted truth.

The systems differ in how much their compositions do, drift on their own, and have hosts of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from campaign.analysis.statistics import comparable_cells, comparisons
from campaign.common import intervals
from campaign.spec.run_numbers import compute_run_number

COUNTS = (1, 2, 4, 8)


def planted(
    campaigns: int, seed: int, spread: tuple[float, float], ratio: float = 1.0, compositions: int = 3
) -> pd.DataFrame:
    """Runs of many campaigns: of each device count two cells, one on each system. spread: of compositions on each."""
    random = np.random.default_rng(seed)
    found = []
    for place, ranks in enumerate(COUNTS):
        for system, sd in enumerate(spread):
            drift = 0.02 * (1 - 2 * system)  # one gets slower, the other faster
            for block in range(compositions):
                when = (block + random.random(campaigns)) / compositions
                lease = sd * random.standard_normal(campaigns) + drift * (when - 0.5)
                for run in range(2):
                    log = lease + 0.005 * random.standard_normal(campaigns)
                    at = np.arange(campaigns) * 8 + 2 * place + system
                    found.append(pd.DataFrame({
                        "cell_id": at, "lease_id": [f"{cell}.{block}" for cell in at], "workload": np.arange(campaigns),
                        "repetition": compute_run_number(block + 1, run + 1), "configuration": "c", "batch": ranks, "status": "ok",
                        "system": f"s{system}", "host_names": f"host{system}-{place}", "started": float(block),
                        "value": np.exp(log) * (ratio if system else 1.0),
                    }))  # fmt: skip
    return pd.concat(found, ignore_index=True)


def compared(runs: pd.DataFrame, campaigns: int) -> tuple[npt.NDArray[np.float64], ...]:
    """Of each campaign and device count: p, adjusted within the campaign, and the interval."""
    first = pd.Series(np.arange(campaigns * len(COUNTS)) * 2)
    found = comparisons.compute_ratios(first + 1, first, comparisons.build_design(runs, {"lease_order": "blocks"}))
    assert found.is_tested.all()
    p = found.compute_p_values().reshape(campaigns, -1)
    _, low, high = (each.reshape(campaigns, -1) for each in found.estimate.compute_bounds())
    return np.array([intervals.adjust_p_values(each) for each in p]), low, high


@pytest.mark.parametrize("spread", [(0.01, 0.01), (0.003, 0.02), (0.02, 0.003)])
def test_ties_are_ties_and_intervals_hold_the_truth(spread: tuple[float, float]) -> None:
    """Though each cell stayed on hosts of its system, and one system's compositions differ more than the other's."""
    p, low, high = compared(planted(400, 3, spread), 400)
    assert (p < 0.05).any(axis=1).mean() <= 0.07
    assert ((low <= 1) & (high >= 1)).mean() >= 0.93


def test_a_planted_difference_is_found() -> None:
    p, low, high = compared(planted(200, 4, (0.01, 0.01), ratio=1.08), 200)
    assert (p < 0.05).mean() > 0.9
    assert 0.93 <= ((low <= 1.08) & (high >= 1.08)).mean() <= 0.985


def cell(name: str, system: str, hosts: int, each: int, **values: object) -> dict[str, object]:
    return {
        "cell_id": name, "configuration": name, "system": system, "hosts": hosts, "devices_per_host": each,
        "local_devices_per_host": each, "devices_used": each, "ranks": hosts * each, "attach": "local", "storage": "local",
        "workload": "bert", "batch": 8, "precision": "fp32", "n_ok": 2, "mean": 100.0, "sd": 1.0, "device": f"a on {system}",
        **values,
    }  # fmt: skip


def test_a_composition_is_held_against_as_many_hosts_else_against_the_fewest() -> None:
    cells = pd.DataFrame([
        cell("t1x2", "t", 1, 2), cell("t2x2", "t", 2, 2), cell("t4x1", "t", 4, 1), cell("t2x4", "t", 2, 4, n_ok=0),
        cell("c1x4", "c", 1, 4, attach="fabric", local_devices_per_host=0), cell("c2x2", "c", 2, 2), cell("c1x8", "c", 1, 8),
        cell("c1x2", "c", 1, 2, precision="fp16"),
    ])  # fmt: skip
    ids = cells["cell_id"].repeat(2)
    runs = cells.loc[ids.index].assign(
        repetition=[1, 2] * len(cells), lease_id=ids, status="ok", value=100.0, started=0.0, host_names="h"
    )
    rows = comparable_cells.compare_systems(cells, comparisons.build_design(runs))
    found = rows[["configuration", "against_configuration", "same_hosts"]].itertuples(index=False, name=None)
    # Nothing of the first system has 8 devices and a run, or this precision.
    assert list(found) == [("c1x4", "t2x2", False), ("c2x2", "t2x2", True)]
    assert set(rows["against_system"]) == {"t"}
