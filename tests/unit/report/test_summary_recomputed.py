"""Every number of a summary, worked out again from records without the package (`tests.recomputed`)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from unittest import mock

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.report import plot
from tests import measured_campaign
from tests.recomputed import Campaign, Key, best, differences, like, percentile
from tests.unit.report.figure_columns import UNPAINTED

NAMES = ("1x1of2-local", "1x1-local", "1x2-local", "1x2-fabric", "1x1-fabric", "2x1-local", "fp32", "bf16", "host1")
# Of each figure by its title: the numbers of its first finding, in order.
Expected = Callable[[Campaign, Path], Sequence[float]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recomputed")
    found = measured_campaign.write(directory)
    steps = [
        ["plan", directory / "campaign.yaml", "--results", directory / "results", "--write"],
        ["collect", found / "plan" / "plan.json"],
        ["figures", found, "--for", "report", "--output", found / "figures"],
        ["recommend", found, "--output", found / "recommendation"],
        ["summary", found, "--output", found / "summary.txt"],
    ]
    with mock.patch.object(plot, "to_svg", return_value=UNPAINTED):
        for step in steps:
            ran = CliRunner().invoke(main, [str(word) for word in step], catch_exceptions=False)
            assert ran.exit_code == 0, ran.output
    return found


def _several(
    ratios: dict[Key, float], words: Callable[[Key], Sequence[float]], express: Callable[[float], float] = float
) -> list[float]:
    """The mean of cells without its interval, how many they are, and the smallest and the largest estimate with their cells.

    Equal estimates are given once, without a cell.
    """
    said = [express(exp(fmean(map(log, ratios.values())))), len(ratios)]
    ordered = sorted(ratios, key=lambda key: express(ratios[key]))
    ends = [express(ratios[key]) for key in (ordered[0], ordered[-1])]
    if express is float and f"{ends[0]:.2f}" == f"{ends[1]:.2f}":
        return [*said, ends[0]]
    return [*said, ends[0], *words(ordered[0]), ends[1], *words(ordered[-1])]


def _scaling(of: Campaign, _: Path) -> Sequence[float]:
    keys = of.where(hosts=1, devices_used=2, attach="local") + of.where(hosts=1, devices_used=2, attach="fabric")
    ratios = {}
    for key in keys:
        against = of.where(hosts=1, devices_per_host=1, batch=key[1], precision=key[2], attach=of.cells[key]["attach"])
        ratios |= {key: of.cost[against[0]] / of.cost[key] / 2} if against else {}
    return _several(ratios, lambda key: [key[1]], lambda ratio: 100 * ratio)


def _by_batch(of: Campaign, _: Path) -> Sequence[float]:
    def speed_up(batch: int, precision: str) -> float:
        return of.cost[("1x1-local", batch, precision)] / of.cost[("1x2-local", batch, precision)]

    ratios = {("", 2, name): speed_up(8, name) / speed_up(4, name) for name in ("fp32", "bf16")}
    return _several(ratios, lambda key: [], lambda ratio: 100 * (ratio - 1))


def _spread(of: Campaign, _: Path) -> Sequence[float]:
    keys = of.where(configuration="2x1-local")
    ratios = {key: of.cost[like(key, "1x2-local")] / of.cost[key] for key in keys}
    return [*_several(ratios, lambda key: [key[1]], lambda ratio: 100 * (1 - ratio)), len(keys)]


def _variance(of: Campaign, _: Path) -> Sequence[float]:
    value, low, high = of.run_to_run_pct()
    return [value, low, high]


def _part(of: Campaign, _: Path) -> Sequence[float]:
    keys = of.where(configuration="1x1of2-local")
    ratios = {key: of.cost[like(key, "1x1-local")] / of.cost[key] for key in keys}
    return [*_several(ratios, lambda key: [key[1]], lambda ratio: 100 * (ratio - 1)), len(keys)]


def _precision(of: Campaign, _: Path) -> Sequence[float]:
    keys = of.where(precision="bf16")

    def words(key: Key) -> Sequence[float]:
        cell = of.cells[key]
        shape = [1, 2] if cell["devices_used"] < cell["devices_per_host"] else [of.ranks(key)]
        shape = shape if cell["hosts"] == 1 else [of.ranks(key), cell["hosts"]]
        return [*shape, key[1]]

    ratios = {key: of.cost[(*key[:2], "fp32")] / of.cost[key] for key in keys}
    return [*_several(ratios, words), len(keys)]


def _overhead(of: Campaign, _: Path) -> Sequence[float]:
    keys = of.where(attach="fabric")
    ratios = {key: of.cost[like(key, "1x2-local")] / of.cost[key] for key in keys}
    return [*_several(ratios, lambda key: [key[1]], lambda ratio: 100 * (1 / ratio - 1)), len(keys)]


def _cost(of: Campaign, _: Path) -> Sequence[float]:
    """Device-hours of a million samples count every composed device."""

    def hours(key: Key) -> float:
        cell = of.cells[key]
        return float(cell["hosts"] * cell["devices_per_host"] * of.cost[key] * 1e6 / 3600)

    fastest, cheapest = best(list(of.cells), of.rate), best(list(of.cells), lambda key: -hours(key))
    return [cheapest[1], hours(cheapest), 1, fastest[1], of.rate(fastest)]


def _composing(of: Campaign, results: Path) -> Sequence[float]:
    took: dict[str, list[list[float]]] = {}
    for lease in of.leases(results):
        ends = [lease[name] for name in ("requested_s", "fabric_done_s", "host_visible_s", "ready_s")]
        took.setdefault(lease["configuration"], []).append([b - a for a, b in pairwise(ends)])
    totals = {name: fmean(map(sum, phases)) for name, phases in took.items()}
    means = [[fmean(phase) for phase in zip(*phases, strict=True)] for phases in took.values()]
    fabric, every = sum(phases[0] for phases in means), sum(map(sum, means))
    return [max(totals.values()), min(totals.values()), 100 * fabric / every]


def _recomposing(of: Campaign, results: Path) -> Sequence[float]:
    """Two devices of the fabric instead of a local one: the time to compose and to release, over the share of time they save."""
    times = [
        lease["ready_s"] - lease["requested_s"] + lease["released_s"] - lease["release_started_s"]
        for lease in of.leases(results)
        if lease["configuration"] == "1x2-fabric"
    ]
    keys = of.where(configuration="1x2-fabric")
    ratio = exp(fmean(log(of.cost[like(key, "1x1-local")] / of.cost[key]) for key in keys))
    return [fmean(times) / (1 - 1 / ratio), len(keys)]


def _steps(of: Campaign, _: Path) -> Sequence[float]:
    tails = {}
    for key in of.cells:
        steps = sorted(step for record in of.of_cell(key) for step in record["step_times_s"][0])
        tails[key] = percentile(steps, 99) / percentile(steps, 50)
    key = best(list(tails), tails.__getitem__)
    return [99, tails[key], key[1], 2]


def _utilisation(of: Campaign, _: Path) -> Sequence[float]:
    means = {key: fmean(r["metrics"]["cpu_utilisation_mean_pct"] for r in of.of_cell(key)) for key in of.cells}
    assert max(means.values()) - min(means.values()) < 1e-9
    return [min(means.values())]


def _workloads(of: Campaign, _: Path) -> Sequence[float]:
    return [1, fmean(record["metrics"]["parameters"] for record in of.records) / 1e6]


def _nothing(of: Campaign, _: Path) -> Sequence[float]:
    return []


def _advice(of: Campaign) -> Iterator[Sequence[float]]:
    """The fastest cell in each precision, then the cheapest one."""
    for precision in ("fp32", "bf16"):
        key = best(of.where(precision=precision), of.rate)
        rate = of.rate(key)
        yield [1, of.ranks(key), key[1], rate, of.k]
    key = best(of.where(precision="fp32"), lambda key: of.rate(key) / of.devices(key))
    rate = 3600 * of.rate(key) / of.devices(key)
    yield [1, of.ranks(key), key[1], rate, of.k]


FIRST_FINDING: dict[str, Expected] = {
    "Scaling": _scaling,
    "Speed-up by batch": _by_batch,
    "Node spread": _spread,
    "Variance and slow hosts": _variance,
    "Step times": _steps,
    "Part of a host": _part,
    "Precision": _precision,
    "Local, hybrid and fabric": _overhead,
    "Utilisation": _utilisation,
    "Throughput against cost": _cost,
    "Composition times": _composing,
    "When recomposing pays": _recomposing,
    "Workloads": _workloads,
    "Software stack": _nothing,
}


def test_every_number_of_the_summary_follows_from_the_records(results: Path) -> None:
    of = Campaign(results)
    blocks = [block.splitlines() for block in (results / "summary.txt").read_text().strip().split("\n\n")]
    counts, *figures, advice, last = blocks
    runs = len(of.records)
    wrong = differences(counts[0], NAMES, [len(of.cells), runs, runs, 0, 0])
    composed = len({record["cell"]["configuration"] for record in of.records})
    wrong += differences(counts[1], NAMES, [composed, len({record["lease_id"] for record in of.records}), of.k])
    assert len(counts) == 2
    assert last == [f"Report: {results / 'report.html'}"]
    for title, *findings in figures:
        assert title in FIRST_FINDING, f"nothing says what the numbers of {title!r} have to be: {findings}"
        assert len(findings) == 1
        # The interval of a mean is judged by simulation, in test_average_ratio.
        said = re.sub(r" \[[^]]*\](?=.* on average over )|95 % interval .*(?=; mean of )", "", findings[0])
        wrong += [f"{title}: {each}" for each in differences(said, NAMES, FIRST_FINDING[title](of, results))]
    assert advice[0] == "What to build"
    for sentence, expected in zip(advice[1:], _advice(of), strict=True):
        # The interval allows for the choice by number, which a simulation judges (test_selected_estimate).
        said = re.sub(r" \(95\u202f% interval [^)]*\)", "", sentence)
        wrong += [f"{advice[0]}: {each}" for each in differences(said, NAMES, expected)]
    assert not wrong, "\n".join(wrong)
    assert {block[0] for block in figures} == set(FIRST_FINDING)


def test_a_number_that_differs_or_is_not_known_is_noticed() -> None:
    assert differences("1x1-local: 1.92× (95 % interval 1.90×)", NAMES, [1.9249, 95, 1.8951]) == []
    assert differences("1.92×", NAMES, [1.926]) == ["1.92 instead of 1.926"]
    assert differences("−3.2 % of 12,345", NAMES, [3.2, 12345]) == ["−3.2 instead of 3.2"]
    assert "3 numbers instead of 2" in differences("1.92× in 3 of 4", NAMES, [1.92, 3])[0]
    assert "2 numbers instead of 3" in differences("1.92× in 3", NAMES, [1.92, 3, 4])[0]


def test_figures_that_an_earlier_version_did_not_draw_are_on_the_page(results: Path, tmp_path: Path) -> None:
    earlier, page = tmp_path / "earlier", tmp_path / "page.html"
    shutil.copytree(results, earlier)
    for path in (earlier / "figures").glob("break_even.*"):
        path.unlink()
    drawn = {path.name for path in (earlier / "figures").iterdir()}
    with mock.patch.object(plot, "to_svg", return_value=UNPAINTED):
        ran = CliRunner().invoke(main, ["report", str(earlier), "--output", str(page)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert 'id="break-even"' in page.read_text()
    assert {path.name for path in (earlier / "figures").iterdir()} == drawn
