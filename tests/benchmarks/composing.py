"""How well composing is forecast: recordings are kept back in whole sessions, and forecast from the others.

    python -m tests.benchmarks.composing [--times FILE] [--kept-back FILE] [--draws 200]

Without a file of recordings that were kept back, each session in turn is (leave one out), then random thirds of them. A
recomposition is forecast without anything of its own session, and then with what went before in it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median

from campaign.documents.operation_times import OperationTimes, Session, Timed, published_times, read_times
from campaign.fabrics.operations import Operations
from campaign.plan.cost.composing import ComposingTimes
from campaign.plan.cost.draws import estimates
from campaign.plan.cost.estimates import Estimate

Cases = Callable[[Session], Iterator[tuple[int, list[Timed], list[Timed]]]]
"""Of a session: number of devices, the operations to forecast, and those before them."""


@dataclass(frozen=True)
class Outcome:
    """One forecast beside what happened."""

    session: str
    devices: int
    actual_s: float
    forecast: Estimate

    @property
    def covered(self) -> bool:
        return self.forecast.low_s <= self.actual_s <= self.forecast.high_s

    @property
    def error(self) -> float:
        return abs(self.forecast.expected_s - self.actual_s) / self.actual_s


def recompositions(session: Session) -> Iterator[tuple[int, list[Timed], list[Timed]]]:
    """As they were recorded."""
    before: list[Timed] = []
    for group in session.groups():
        if devices := sum(each.operation == "attach" for each in group):
            yield devices, list(group), list(before)
        before += group


def windows(session: Session) -> Iterator[tuple[int, list[Timed], list[Timed]]]:
    """Every 1 to 8 moves in a row."""
    moves: list[list[Timed]] = []
    for each in session.operations:
        if each.operation == "detach":
            moves.append([])
        if moves and each.operation != "inventory":
            moves[-1].append(each)
    moves = [move for move in moves if len(move) > 1]
    for devices in range(1, 9):
        for start in range(0, len(moves) - devices + 1, devices):
            chosen, before = moves[start : start + devices], moves[:start]
            yield devices, [each for move in chosen for each in move], [each for move in before for each in move]


def without_reads(session: Session) -> Session:
    """Only detaches and attaches."""
    return replace(session, operations=tuple(o for o in session.operations if o.operation in ("detach", "attach")))


def outcomes(times: OperationTimes, kept: Sequence[Session], cases: Cases, *, history: bool) -> Iterator[Outcome]:
    """Forecasts of sessions that the times do not have."""
    unseen = ComposingTimes(times)
    for session in kept:
        for devices, chosen, before in cases(session):
            operations = Operations.counted(chosen)
            if (before or not history) and unseen.knows(operations):
                known = ComposingTimes(times, now=before) if history else unseen
                (told,) = estimates(known.time(operations)[None])
                yield Outcome(session.name, devices, sum(each.seconds for each in chosen), told)


def left_out(times: OperationTimes, cases: Cases, *, history: bool) -> list[Outcome]:
    """Each session is forecast from all others."""
    found = []
    for session in times.sessions:
        rest = replace(times, sessions=tuple(each for each in times.sessions if each is not session))
        found += outcomes(rest, [session], cases, history=history)
    return found


def split(times: OperationTimes, cases: Cases, random: Random, *, history: bool) -> list[Outcome]:
    """A third of the sessions, at random, is forecast from the others."""
    kept = random.sample(times.sessions, round(len(times.sessions) * 9 / 26))
    rest = replace(times, sessions=tuple(each for each in times.sessions if each not in kept))
    return list(outcomes(rest, kept, cases, history=history))


def coverage(found: Sequence[Outcome]) -> float:
    return fmean(each.covered for each in found)


def coverage_range(found: Sequence[Outcome]) -> tuple[float, float]:
    """95 % interval of the coverage, by drawing sessions again: a session's outcomes are alike."""
    sessions: dict[str, list[Outcome]] = {}
    for each in found:
        sessions.setdefault(each.session, []).append(each)
    random, several = Random(1), list(sessions.values())
    shares = sorted(
        coverage([each for session in random.choices(several, k=len(several)) for each in session]) for _ in range(1000)
    )
    return shares[25], shares[974]


def width(found: Sequence[Outcome]) -> float:
    """Median width of the intervals, as a share of the time."""
    return median((each.forecast.high_s - each.forecast.low_s) / each.forecast.expected_s for each in found)


def width_in_hindsight(found: Sequence[Outcome]) -> float:
    """The narrowest interval around all forecasts, in proportion to them, that would have held 95 % of what happened."""
    ratios = sorted(each.actual_s / each.forecast.expected_s for each in found)
    held = math.ceil(0.95 * len(ratios)) - 1
    return min(high - low for low, high in zip(ratios, ratios[held:], strict=False))


def median_error(found: Sequence[Outcome]) -> float:
    return median(each.error for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=Path, help="recordings to learn from (operation-times/1); default: those of h3")
    parser.add_argument("--kept-back", type=Path, help="recordings to forecast")
    parser.add_argument("--draws", type=int, default=200, help="random thirds")
    given = parser.parse_args()
    times = read_times(given.times) if given.times else published_times("h3")
    kept = read_times(given.kept_back) if given.kept_back else None
    everything = {"detach and attach": without_reads, "with every read": lambda session: session}
    for name, part in everything.items():
        known = replace(times, sessions=tuple(map(part, times.sessions)))
        for cases in (recompositions, windows):
            for history in (False, True):
                said = f"{name}, {cases.__name__}, {'with' if history else 'without'} history"
                if kept:
                    found = list(outcomes(known, [part(each) for each in kept.sessions], cases, history=history))
                    print(f"{said}: {_told(found)}")
                    continue
                print(f"{said}: leave one session out: {_told(left_out(known, cases, history=history))}")
                random = Random(1)
                draws = [split(known, cases, random, history=history) for _ in range(given.draws)]
                shares, errors = (
                    [coverage(each) for each in draws if each],
                    [median_error(each) for each in draws if each],
                )
                print(
                    f"    {given.draws} random thirds: mean coverage {fmean(shares):.1%}, at least 91 % in "
                    f"{fmean(share >= 0.91 for share in shares):.0%} of them; median error {median(errors):.1%}"
                )


def _told(found: Sequence[Outcome]) -> str:
    by_size = {size: [each for each in found if each.devices == size] for size in sorted({o.devices for o in found})}
    sizes = ", ".join(
        f"{size}: {coverage(some):.0%} of {len(some)}, {width(some):.0%}" for size, some in by_size.items()
    )
    low, high = coverage_range(found)
    return (
        f"covered {coverage(found):.1%} of {len(found)} ({low:.0%} to {high:.0%} with other sessions), median error "
        f"{median_error(found):.1%}, median width {width(found):.0%} of the time (in hindsight, one width for all would have been "
        f"{width_in_hindsight(found):.0%}); by devices, with width: {sizes}"
    )


if __name__ == "__main__":
    main()
