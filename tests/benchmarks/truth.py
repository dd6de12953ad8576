"""Statements under a planted truth, in full size: `python -m tests.benchmarks.truth [CAMPAIGNS]` prints a table.

A row is a kind of campaign. cover: intervals that hold the truth (95 wanted); wrong: campaigns in which a tie is called a
difference (at most 5 wanted); found: true differences that are named; half: median half-width of intervals. All in percent.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from campaign.spec.cell import Cell
from tests import imported_under_truth
from tests import statements_under_truth as said
from tests.figures_under_truth import over
from tests.planted_campaigns import Truth
from tests.planted_records import Planted
from tests.statements_under_truth import Statements
from tests.unit.analysis.test_answers_agree import contradictions, planted

Row = tuple[str, Callable[[], Statements]]


def _between(campaigns: int) -> Iterator[Row]:
    for k, lease, run in itertools.product((2, 3, 5), (0.0, 0.005, 0.01, 0.02, 0.03), (0.003, 0.01, 0.03)):
        truth = Truth(compositions=k, runs=2 * k, lease=lease, run=run)
        name = f"{k} compositions, lease sd {100 * lease:g} %, run sd {100 * run:g} %"
        yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
    others = {
        f"{m} configurations, drift {100 * drift:g} %": Truth(configurations=m, drift=drift, runs=5)
        for m, drift in itertools.product((3, 4, 8, 12), (0.0, 0.02, 0.05))
    }
    others |= {
        "one composition, borrowed from 4 of 6": Truth(configurations=6, compositions=(3, 3, 3, 3, 1, 1)),
        "one composition, borrowed from 6 of 12": Truth(configurations=12, compositions=(3,) * 6 + (1,) * 6),
        "unequal compositions (3, 3, 2, 5)": Truth(compositions=(3, 3, 2, 5)),
        "10 % of runs and of leases missing": Truth(configurations=6, missing=0.1, failed=0.1),
        "5 % of runs 30 % slow, 3 x 3": Truth(slow=0.05, runs=9),
        "heavy tails (t, 3)": Truth(noise="heavy", run=0.02),
        "skew (exponential), runs and leases": Truth(noise="skew", of_leases="skew"),
        "two modes, runs and leases": Truth(noise="two", of_leases="two"),
        "6 cells a lease": Truth(cells=6, runs=3),
        "one of 12 configurations ten times as noisy": Truth(configurations=12, noisy=10),
        "5 % of runs 30 % slow, 45 configurations, 3 x 2": Truth(configurations=45, slow=0.05),
        "5 % in two of four, 3 compositions": Truth(runs=5, effect=(1, 1.05, 1, 1.05)),
    }
    for name, truth in others.items():
        yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
    for workloads, k, cells in itertools.product((2, 4), (2, 3, 5), (1, 4)):
        truth = Truth(workloads=workloads, compositions=k, runs=2 * k, cells=cells)
        name = f"{workloads} workloads x {cells} cells on a lease, {k} compositions"
        yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
        yield f"single cells, {name}", lambda truth=truth: said.locations(truth, campaigns)  # type: ignore[misc]
    for m, k, at in itertools.product((2, 4, 8), (2, 3, 5), (0, -1)):
        truth = Truth(configurations=m, compositions=k, runs=2 * k, noisy=3, noisy_at=at)
        name = f"{m} configurations, {k} compositions, {'the last one' if at else 'the baseline'} three times as noisy"
        yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
        if at:
            yield f"single cells, {name}", lambda truth=truth: said.locations(truth, campaigns)  # type: ignore[misc]
    for m, few, noisy in itertools.product((2, 4, 8), (2, 3, 5), (1, 3)):
        truth = Truth(m, compositions=(few, *[5] * (m - 1)), runs=10, noisy=noisy, noisy_at=0)
        name = f"baseline of {m} configurations, {few} compositions beside 5, {noisy} times as noisy (found: marked as noisy)"
        yield name, lambda truth=truth: said.marked_noisy(truth, campaigns)  # type: ignore[misc]
    for m, k, of in itertools.product((2, 4, 8), (2, 3, 5), ("normal", "skew")):
        truth = Truth(configurations=m, compositions=k, runs=2 * k, noise=of, of_leases=of)
        name = f"single cells, {m} configurations, {k} compositions, {of}"
        yield name, lambda truth=truth: said.locations(truth, campaigns)  # type: ignore[misc]
    for k, runs, lease in itertools.product((2, 3, 5), (2, 10), (0.0, 0.02)):
        truth = Truth(compositions=k, runs=k * runs, lease=lease)
        name = f"median of a cell, {k} compositions x {runs} runs, lease sd {100 * lease:g} %"
        yield name, lambda truth=truth: said.medians(truth, campaigns)  # type: ignore[misc]
    for hosts, m, k, passing in itertools.product((4, 8), (6, 12), (2, 3, 5), (False, True)):
        beside = Truth(m, compositions=k, runs=2 * k, side_by_side=hosts, passing=passing)
        order = "small leases pass large ones" if passing else "leases in the order of the plan"
        for drifts, drift in (("no drift", 0.0), ("campaign", 0.05), ("down", 0.05), ("up and down", 0.05)):
            truth = replace(beside, drift=drift, drifts=drifts if drift else "campaign")
            name = f"{order} on {hosts} hosts, {m} configurations, {k} compositions, drift: {drifts}"
            yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
    for placed, hosts, sd in itertools.product(("random", "one", "own"), (2, 3, 4), (0.0, 0.01, 0.03)):
        truth = Truth(hosts=hosts, host=sd, placed=placed)
        name = f"compositions on {hosts} hosts ({placed}), host sd {100 * sd:g} %"
        yield name, lambda truth=truth: said.measured(truth, campaigns)  # type: ignore[misc]
    for lease in (0.0, 0.01, 0.03):
        name = f"one composition, borrowed from an earlier campaign, lease sd {100 * lease:g} %"
        once, before = Truth(compositions=1, runs=2, lease=lease), Truth(lease=lease)
        yield name, lambda once=once, before=before: said.lent(once, before, campaigns)  # type: ignore[misc]


def _power(campaigns: int) -> Iterator[Row]:
    """found: of differences as large as is called detectable, 80 wanted; half: that size."""
    for (m, cells), k in itertools.product(((2, 1), (4, 1), (8, 1), (12, 1), (4, 4), (8, 4), (12, 4)), (2, 3, 5)):
        truth = Truth(m, compositions=k, runs=2 * k, cells=cells)
        name = f"{m} configurations x {cells} cells, {k} compositions"
        yield f"detectable by plan, {name}", lambda truth=truth: said.detected(truth, campaigns)  # type: ignore[misc]
        yield f"least detectable as stated, {name}", lambda truth=truth: said.least_detected(truth, campaigns)  # type: ignore[misc]


def _mixes(campaigns: int) -> Iterator[Row]:
    """half of the first ones: stated over true standard deviation, in percent."""
    for workloads, k, (lease, run) in itertools.product((2, 4), (2, 3, 5), ((0.0, 0.02), (0.02, 0.01), (0.03, 0.003))):
        truth = Truth(workloads=workloads, compositions=k, runs=2 * k, lease=lease, run=run)
        name = f"mix of {workloads} workloads, {k} compositions, lease sd {100 * lease:g} %, run sd {100 * run:g} %"
        yield name, lambda truth=truth: said.mixed(truth, campaigns)  # type: ignore[misc]
    differs = Truth(workloads=4, compositions=5, runs=10, effect=(1, 1.05, 1, 1.05))
    yield "mix of 4 workloads, 5 compositions, configurations differ", lambda: said.mixed(differs, campaigns)
    for k in (2, 3, 5):
        truth = Truth(workloads=4, compositions=k, runs=2 * k, lease=0.02, effect=(1, 1.1, 1.2, 1.3))
        name = f"slow-down of a mix of 3 workloads, {k} compositions"
        yield name, lambda truth=truth: said.slow_downs(truth, campaigns // 4)  # type: ignore[misc]


def _several(campaigns: int) -> Iterator[Row]:
    """Means of several comparisons, and the best of several configurations."""
    shapes = {
        "2 leases against one": Truth(configurations=3),
        "6 leases against one": Truth(configurations=7),
        "20 leases against one": Truth(configurations=21),
        "2 cells on each of two leases": Truth(configurations=2, cells=2),
        "20 cells on each of two leases": Truth(configurations=2, cells=20),
        "60 cells on each of two leases": Truth(configurations=2, cells=60),
        "20 cells on each of four leases": Truth(configurations=4, cells=20),
        "4 workloads x 5 cells on each of four leases": Truth(configurations=4, workloads=4, cells=5),
        "6 leases against one, unequal truths": Truth(configurations=7, effect=(1, 1, 1.02, 1.05, 1.1, 1.2, 1.5)),
        "6 leases against one, drift 5 %": Truth(configurations=7, drift=0.05),
    }
    borrowed = Truth(configurations=12, compositions=(3,) * 6 + (1,) * 6)
    yield "mean, 11 against one, six of them composed once", lambda: said.averages(borrowed, campaigns)
    for k, (name, truth) in itertools.product((2, 3, 5), shapes.items()):
        truth = replace(truth, compositions=k, runs=2 * k)
        yield f"mean, {k} compositions, {name}", lambda truth=truth: said.averages(truth, campaigns)  # type: ignore[misc]
    for k, (leases, cells) in itertools.product((1, 2, 3, 5), ((1, 3), (1, 21), (20, 2), (60, 2))):
        truth = Truth(configurations=leases, cells=cells, compositions=k, runs=max(6, 2 * k), lease=0.03)
        name = f"mean within leases, {k} compositions, {leases} x {cells - 1} cells, lease sd 3 %"
        yield name, lambda truth=truth: said.averages(truth, campaigns, within=True)  # type: ignore[misc]
    for count in (2, 6, 20, 60):
        truth = Truth(configurations=count, cells=2, lease=0.03)
        yield f"largest of {count} with the interval of one", lambda truth=truth: said.largest(truth, campaigns)  # type: ignore[misc]
    for name, truth in _choices():
        yield f"best of {name}", lambda truth=truth: said.chosen(truth, campaigns)  # type: ignore[misc]


def _choices() -> Iterator[tuple[str, Truth]]:
    """Yield campaigns from whose cells the best one is chosen; their row has the truths above the interval as wrong."""
    for k, m in itertools.product((2, 3, 5), (2, 6, 24, 60)):
        truth = Truth(configurations=m, compositions=k, runs=2 * k)
        others = {
            "equal": truth,
            "with one 10 % ahead": replace(truth, effect=(1.0, *(1.1,) * (m - 1))),
            "in steps of 1 %": replace(truth, effect=tuple(1 + 0.01 * n for n in range(m))),
            "half of them 2 % behind": replace(truth, effect=(1.0,) * (m // 2) + (1.02,) * (m // 2)),
        }
        yield from ((f"{m} on leases of their own, {k} compositions, {name}", each) for name, each in others.items())
    for k, (m, cells), lease in itertools.product(
        (2, 3, 5), ((1, 2), (1, 6), (1, 20), (1, 60), (2, 3), (6, 4), (12, 5)), (0.01, 0.03)
    ):
        truth = Truth(configurations=m, compositions=k, runs=2 * k, cells=cells, lease=lease)
        yield f"{m} x {cells} on shared leases, {k} compositions, lease sd {100 * lease:g} %", truth
        if m > 1 and lease < 0.02:
            yield (
                f"{m} x {cells} on shared leases, {k} compositions, unequal",
                replace(truth, effect=tuple(1 + 0.02 * n for n in range(m))),
            )
    for k, (m, at) in itertools.product((2, 3, 5), ((6, 0), (24, 0), (6, -1), (24, -1))):
        truth = Truth(configurations=m, compositions=k, runs=2 * k, noisy=3, noisy_at=at)
        yield f"{m} with one three times as noisy, {k} compositions, place {at}", truth


def _others(campaigns: int) -> Iterator[Row]:
    for k in (1, 2, 3, 5):
        shared = Truth(compositions=k, runs=max(6, k), cells=3, lease=0.03)
        yield f"within leases, {k} compositions, lease sd 3 %", lambda truth=shared: said.within(truth, campaigns)  # type: ignore[misc]
    for runs, noise, slow in itertools.product((5, 10, 20), ("normal", "heavy", "skew", "two"), (0.0, 0.05)):
        truth = Truth(configurations=10, compositions=1, runs=runs, lease=0.0, noise=noise, slow=slow)
        name = f"location of a cell, {runs} runs, {noise}{', 5 % slow' if slow else ''}"
        yield name, lambda truth=truth: said.locations(truth, campaigns // 4)  # type: ignore[misc]


def _public(campaigns: int) -> Iterator[Row]:
    spread, alone = Truth(lease=0.015), Truth(compositions=1, runs=5, lease=0.015)
    yield "compare, nothing changed, 3 compositions (half: --fail-on)", lambda: said.compared(spread, campaigns)
    many = Truth(compositions=1, runs=5, lease=0.015, configurations=8)
    yield "compare, nothing changed, one composition, 8 configurations", lambda: said.compared(many, campaigns)
    changed = Truth(lease=0.015, effect=(1, 1, 1, 1.1))
    yield "compare, one of four 10 % slower", lambda: said.compared(changed, campaigns)
    for earlier, day, known in itertools.product((1, 2, 3, 5, 9), (0.0, 0.02), (True, False)):
        name = f"site, nothing changed, {earlier} earlier campaigns, day sd {100 * day:g} %"
        name += "" if known else ", as without a history"
        yield (
            name,
            lambda e=earlier, d=day, k=known: said.changed_between_campaigns(spread, d, e, campaigns, with_spread=k),
        )  # type: ignore[misc]
    for earlier in (3, 5, 9):
        name = f"site, one of four 30 % slower, {earlier} earlier campaigns, day sd 2 %"
        slower = replace(spread, effect=(1, 1, 1, 1.3))
        yield name, lambda e=earlier, truth=slower: said.changed_between_campaigns(truth, 0.02, e, campaigns)  # type: ignore[misc]
    yield "recommend, four equal, 3 compositions", lambda: said.recommended(spread, campaigns)
    yield "recommend, four equal, one composition", lambda: said.recommended(alone, campaigns)
    best = Truth(effect=(1, 1.1, 1.1, 1.1))
    yield "recommend, the first 10 % faster", lambda: said.recommended(best, campaigns)
    yield "dips, none planted, 3 compositions", lambda: said.dipped(spread, campaigns=campaigns)
    yield "dips, 10 % planted, 3 compositions", lambda: said.dipped(Truth(), dip=0.1, campaigns=campaigns)
    logs = {"make": imported_under_truth.tables}
    yield "imported logs: compare, nothing changed, 3 compositions", lambda: said.compared(spread, campaigns, **logs)
    yield "imported logs: compare, one of four 10 % slower", lambda: said.compared(changed, campaigns, **logs)
    yield "imported logs: recommend, four equal, 3 compositions", lambda: said.recommended(spread, campaigns, **logs)
    for hosts, leases, slow in ((3, 1, 0.0), (4, 1, 0.0), (4, 1, 0.05), (3, 2, 0.0), (4, 3, 0.0), (4, 3, 0.05)):
        name = f"slow hosts, {hosts} equal hosts x {leases} leases{', 5 % of runs slow' if slow else ''}"
        yield name, lambda h=hosts, n=leases, s=slow: said.hosts_named(h, n, slow_runs=s, campaigns=5 * campaigns)  # type: ignore[misc]
    yield "slow hosts, one of 4 x 3 is 5 % slower", lambda: said.hosts_named(4, 3, slower=0.05, campaigns=5 * campaigns)


# Every figure has something to compare in a campaign of these shapes; two batches and two precisions share each lease.
_WHOLE = Planted(shapes="all", batches=(8, 16), precisions=("fp32", "bf16"), repetitions=6)
_FIGURES = (
    "overhead",
    "node_spread",
    "part_of_host",
    "scaling",
    "speedup_by_batch",
    "precision",
    "hosts",
    "recommend",
    "compare",
)


def _five_percent(cell: Cell) -> float:
    return cell.configuration.ranks * (0.95 if cell.configuration.attach == "fabric" else 1.0)


def _whole(campaigns: int) -> Iterator[tuple[str, Statements]]:
    """Rows of whole campaigns, from their records to what their figures say."""
    many = {
        "lease sd 1 %": (_WHOLE, _FIGURES),
        "lease sd 2 %": (replace(_WHOLE, lease_sd=2.0), _FIGURES),
        "cells differ on a lease, sd 0.5 %": (replace(_WHOLE, beside_sd=0.5), _FIGURES),
        "2 compositions, lease sd 2 %": (replace(_WHOLE, compositions=2, repetitions=4, lease_sd=2.0), _FIGURES),
        "5 % of runs 30 % slow": (replace(_WHOLE, slow=(0.05, 30.0)), _FIGURES),
        "a fifth of compositions missing": (replace(_WHOLE, missing=0.2), _FIGURES[:-1]),
        "1 composition": (replace(_WHOLE, compositions=1, repetitions=5), _FIGURES),
        "6 device counts": (Planted(shapes="curve", repetitions=6, batches=(8, 16)), ("scaling", "dips")),
        "12 configurations, drift 5 % in blocks": (Planted(shapes="12", drift=5.0), ("cells", "overhead")),
        "runs of other numbers": (Planted(repetitions=15, unequal=True), ("cells", "overhead")),
        "3 configurations": (Planted(shapes="3"), ("cells", "overhead", "recommend", "compare")),
        "fabric 5 % slower, 3 runs": (Planted(repetitions=3, speed=_five_percent), ("overhead", "recommend")),
        "fabric 5 % slower, 9 runs": (Planted(speed=_five_percent), ("overhead", "recommend")),
        "8 hosts, one 5 % slower": (Planted(shapes="12", repetitions=6, slow_host=5.0), ("hosts",)),
    }
    for name, (of, figures) in many.items():
        for figure, found in over(of, figures, campaigns).items():
            yield f"whole campaign, {name}: {figure}", found


def _answers(campaigns: int) -> Iterator[Row]:
    """wrong: pages with two answers that contradict each other."""

    def disagree(leases: int) -> Statements:
        wrong = 100 * np.mean([any(contradictions(planted(seed, leases))) for seed in range(100, 100 + campaigns)])
        return Statements(float("nan"), float(wrong), float("nan"), float("nan"), 100.0)

    for leases in (1, 2, 3):
        yield f"answers of one page, {leases} compositions", lambda leases=leases: disagree(leases)  # type: ignore[misc]


def _number(value: float, digits: int = 0) -> str:
    return "" if value != value else f"{value:.{digits}f}"


def table(campaigns: int) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| planted | cover | wrong | found | half |"
    yield "|---|---|---|---|---|"
    few = max(4, campaigns // 10)
    for name, make in itertools.chain(
        _between(campaigns),
        _power(campaigns),
        _mixes(campaigns),
        _several(campaigns),
        _others(campaigns),
        _public(few),
        _answers(few),
    ):
        yield _line(name, make())
    for name, of in _whole(few):
        yield _line(name, of)


def _line(name: str, of: Statements) -> str:
    return f"| {name} | {_number(of.cover, 1)} | {_number(of.wrong, 1)} | {_number(of.found)} | {_number(of.half, 1)} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        print(line, flush=True)
