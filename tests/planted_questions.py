"""Campaigns with a planted truth of which a question is asked: what they can measure, and what any part of them would measure.

The truth is a step of compute, contention, storage and a ring all-reduce (as `campaign.insight.recommend.model` describes it),
times deviations of each configuration and each cell that no formula knows. Compositions, hosts and runs deviate as well; large
batches run out of memory. A lease that is composed again for another round deviates anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.cell import Cell, Configuration, Settings
from campaign.documents.run_numbers import run_number
from campaign.insight.until import Decision, PricedMatrix, Question, decide
from campaign.insight.until.cell_states import PricedLease
from campaign.insight.until.requirements import tolerance
from campaign.insight.until.weighed import Weighed, weigh
from campaign.tables.io import Tables

MOST_ROUNDS = 80
_HOSTS = 8
Floats = npt.NDArray[np.float64]

_CONTEXT = {"campaign": {"name": "planted", "metric": None, "protocol": {"lease_order": "blocks", "order": "blocks"}}}


@dataclass(frozen=True)
class Planted:
    """A campaign whose truth is known. rate: true throughput by cell id; fails: cells that run out of memory; runs: all runs."""

    matrix: PricedMatrix
    rate: Mapping[str, float]
    fails: frozenset[str]
    runs: pd.DataFrame
    of_lease: Floats
    """Deviation of each lease, by number and by use."""
    hosts: Sequence[Sequence[str]]
    """Where each use of each lease was."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple({cell.id: cell for lease in self.matrix.leases for cell in lease.cells}.values())

    def tables(self, blocks: Mapping[tuple[str, int], int] | None = None) -> Tables:
        """As if these compositions of cells had been measured, each in its round, for which its lease was composed; None: all."""
        runs = self.runs
        keys = pd.MultiIndex.from_frame(runs[["cell_id", "composition"]])
        use = np.zeros(len(runs), dtype=np.int64)
        if blocks is not None:
            rounds = pd.Series(blocks).reindex(keys).to_numpy(dtype=np.float64)
            runs, use = runs[np.isfinite(rounds)], rounds[np.isfinite(rounds)].astype(np.int64)
        lease = runs["lease"].to_numpy()
        value = runs["value"].to_numpy() * np.exp(-self.of_lease[lease, use])
        return Tables(
            runs.assign(
                value=value,
                throughput_per_s=value,
                lease_id=[f"{a}-{b}" for a, b in zip(lease, use, strict=True)],
                host_names=[self.hosts[int(a)][int(b)] for a, b in zip(lease, use, strict=True)],
            ).reset_index(drop=True),
            pd.DataFrame(),
            (),
            (),
            _CONTEXT,
        )


def plant(seed: int, cells: tuple[int, int] = (50, 500), **fixed: Any) -> Planted:
    """A campaign of about so many cells. fixed: `tie` (all configurations equal), `compositions`, `composition_sd`, `run_sd`."""
    random = np.random.default_rng(seed)
    workloads = int(random.integers(1, 4))
    precisions = ["fp32", "fp16"][: int(random.integers(1, 3))]
    batches = [2**n for n in range(1, 1 + int(random.integers(1, 6)))]
    kinds = workloads * len(precisions) * len(batches)
    size = int(random.integers(*cells))
    shapes = _shapes(random, max(5, min(40, size // kinds)))
    compositions = fixed.get("compositions", int(random.choice([3, 3, 4, 5])))
    runs = int(random.integers(1, 3))
    settings = Settings(repetitions=compositions * runs, compositions=compositions)
    every = [
        Cell(f"{shape.name}-w{w}-{precision}-{batch}", shape, f"w{w}", batch, precision, {}, settings)
        for shape in shapes
        for w in range(workloads)
        for precision in precisions
        for batch in batches
    ]
    step, fails = _truth(random, every, bool(fixed.get("tie")))
    rate = {cell.id: cell.batch_global / step[cell.id] for cell in every}
    if fixed.get("tie"):
        rate = {cell.id: 100.0 for cell in every}
    steps, start_s, compose_s = 25, random.uniform(5, 40), random.uniform(10, 120)
    leases = []
    for composition in range(1, compositions + 1):
        for shape in shapes:
            mine = tuple(cell for cell in every if cell.configuration is shape)
            once = (compose_s if shape.fabric_devices else 5.0) * shape.devices / 3600
            hours = tuple(runs * (start_s + steps * step[cell.id]) * shape.devices / 3600 for cell in mine)
            name = f"{shape.name}.c{composition}"
            leases.append(PricedLease(name, shape, composition, mine, once, hours))
    matrix = PricedMatrix(tuple(leases))
    return Planted(matrix, rate, fails, *_runs(random, matrix, rate, fails, runs, fixed))


def _shapes(random: np.random.Generator, count: int) -> list[Configuration]:
    """So many of all shapes of 1 to 16 devices on 1 to 4 hosts."""
    found = []
    for ranks in (1, 2, 4, 8, 16):
        for hosts in (1, 2, 4):
            if ranks % hosts or ranks // hosts > 8 or (ranks // hosts < 1):
                continue
            each = ranks // hosts
            for attach, local in (("local", each), ("hybrid", each // 2), ("fabric", 0)):
                if (attach == "hybrid" and not 0 < local < each) or (attach == "local" and each > 4):
                    continue
                for storage in ("local", "fabric-nvme"):
                    name = f"{hosts}x{each}-{attach}" + ("-nvme" if storage != "local" else "")
                    found.append(Configuration(name, hosts, each, local, each, "a100", attach, storage))  # type: ignore[arg-type]
    chosen = random.choice(len(found), min(count, len(found)), replace=False)
    return [found[n] for n in sorted(chosen)]


def _truth(random: np.random.Generator, cells: list[Cell], tie: bool) -> tuple[dict[str, float], frozenset[str]]:
    """Seconds of a step of each cell, and the cells that run out of memory."""
    about = {}
    for name in dict.fromkeys(cell.workload for cell in cells):
        about[name] = {
            "t0": random.uniform(0.002, 0.02),
            "t1": 10 ** random.uniform(-3, -1.5),
            "attach": random.uniform(0, 0.15),
            "host": random.uniform(0, 0.03),
            "storage": random.uniform(0, 0.05),
            "bytes": 10 ** random.uniform(7.5, 9.3),
            "overlap": random.uniform(0, 0.7),
            "half": random.uniform(1.3, 2.5),
            "memory": random.choice([8, 16, 32, 64, 64]),
        }
    bandwidth = {
        "local": random.uniform(20, 80) * 1e9,
        "fabric": random.uniform(6, 14) * 1e9,
        "network": random.uniform(3, 12) * 1e9,
    }
    of_configuration = {cell.configuration.name: 0.0 for cell in cells}
    sd = random.uniform(0, 0.02)
    for name in of_configuration:
        of_configuration[name] = sd * random.standard_normal()
    sd = random.uniform(0, 0.02)
    step, fails = {}, set()
    for cell in cells:
        shape, of = cell.configuration, about[cell.workload]
        half = cell.precision == "fp16"
        each = of["t1"] / (of["half"] if half else 1.0)
        compute = of["t0"] + cell.batch * each * (1 + of["attach"] * shape.fabric_devices / shape.devices)
        host = cell.batch * each * of["host"] * (shape.devices_per_host - 1)
        storage = cell.batch * each * of["storage"] * shape.devices_per_host * (shape.storage != "local")
        n = shape.ranks
        ways = ["fabric"] * (shape.attach != "local") + ["network"] * (shape.hosts > 1) or ["local"]
        speed = min(bandwidth[way] for way in ways)
        size = of["bytes"] / (2 if half else 1)
        reduce = 0.0 if n == 1 else 2 * (n - 1) * 2e-5 + 2 * (n - 1) / n * size / speed
        time = compute + host + storage + max(0.0, reduce - of["overlap"] * compute)
        step[cell.id] = time * float(np.exp(of_configuration[shape.name] + sd * random.standard_normal()))
        if cell.batch * (1 if half else 2) > of["memory"] and not tie:
            fails.add(cell.id)
    return step, frozenset(fails)


def _runs(
    random: np.random.Generator,
    matrix: PricedMatrix,
    rate: Mapping[str, float],
    fails: frozenset[str],
    runs: int,
    fixed: Mapping[str, Any],
) -> tuple[pd.DataFrame, Floats, list[list[str]]]:
    """All runs without what their leases do to them; that, by lease and use; and the hosts, by lease and use."""
    lease_sd = fixed.get("composition_sd", random.uniform(0.005, 0.03))
    run_sd = fixed.get("run_sd", random.uniform(0.01, 0.03))
    share = random.uniform(0.3, 1.0)
    slow = random.uniform(0.02, 0.08) if random.random() < 0.3 else 0.0
    outlying = random.choice([0.0, 0.01])
    common = np.sqrt(share) * lease_sd * random.standard_normal((len(matrix.leases), MOST_ROUNDS))
    names = []
    for number, lease in enumerate(matrix.leases):
        taken = [sorted(random.choice(_HOSTS, lease.configuration.hosts, replace=False)) for _ in range(MOST_ROUNDS)]
        common[number] += [slow * (0 in each) for each in taken]
        names.append([", ".join(f"host{host + 1}" for host in each) for each in taken])
    rows = []
    for number, lease in enumerate(matrix.leases):
        for cell in lease.cells:
            here = np.sqrt(1 - share) * lease_sd * random.standard_normal()
            for n in range(1, runs + 1):
                log = here + run_sd * random.standard_normal() + (0.3 if random.random() < outlying else 0.0)
                status, value = ("oom_device", np.nan) if cell.id in fails else ("ok", rate[cell.id] * np.exp(-log))
                rows.append((cell.id, run_number(lease.composition, n), lease.composition, number, status, value))
    frame = pd.DataFrame(rows, columns=["cell_id", "repetition", "composition", "lease", "status", "value"])
    by_id = {cell.id: cell for lease in matrix.leases for cell in lease.cells}
    cells = [by_id[name] for name in frame["cell_id"]]
    frame = frame.assign(
        configuration=[cell.configuration.name for cell in cells],
        workload=[cell.workload for cell in cells],
        batch=[cell.batch for cell in cells],
        precision=[cell.precision for cell in cells],
        started=frame["lease"].astype("float64"),
    )
    return frame, common, names


FORMS = ("best", "comparison", "frontier")
WITHIN = {"best": 5.0, "comparison": 3.0, "frontier": 5.0}


def asked(planted: Planted, form: str, seed: int) -> Question:
    """A question of a form; two configurations at random are compared."""
    names = list(dict.fromkeys(cell.configuration.name for cell in planted.cells))
    a, b = np.random.default_rng(seed).choice(len(names), 2, replace=False)
    pair = (names[a], names[b]) if form == "comparison" else ("", "")
    return Question(f"a {form} within {WITHIN[form]:g} %", form, WITHIN[form], *pair)  # type: ignore[arg-type]


def measured_until(planted: Planted, question: Question) -> tuple[Decision, dict[tuple[str, int], int], int]:
    """The last decision on a question, what was measured for it in which round, and how many rounds there were."""
    blocks: dict[tuple[str, int], int] = {}
    for number in range(1, MOST_ROUNDS):
        decision = decide(question, planted.matrix, planted.tables(blocks) if blocks else None, 1, number)
        if decision.stop:
            return decision, blocks, number
        blocks |= {(cell, lease.composition): number for lease in decision.next for cell in lease.cells}
    raise AssertionError(f"{question.text}: no end after {MOST_ROUNDS} rounds")


def followed(planted: Planted, question: Question) -> tuple[Decision, int]:
    """The last decision on a question, and the number of rounds."""
    decision, _, rounds = measured_until(planted, question)
    return decision, rounds


@dataclass(frozen=True)
class Told:
    """Of one campaign. same: the answer is that of the whole matrix, or as good: of the best and the frontier what is named, of a
    comparison whether it is decided; same_panels: so is each panel of a comparison. false: something false was stated as shown;
    decided, by_all: the question, and how many of its panels, also by the whole matrix; share: of the cost; composed: how
    often leases were composed, over the leases of the matrix."""

    same: bool
    same_panels: bool
    false: bool
    decided: bool
    decided_by_all: bool
    panels: int
    panels_decided: int
    panels_decided_by_all: int
    share: float
    composed: float
    rounds: int

    @property
    def reached(self) -> bool:
        """The goal: the answer of the whole matrix for at most 40 % of its cost."""
        return self.same and self.share <= 0.4


def told(planted: Planted, question: Question) -> Told:
    """What came of a question."""
    decision, blocks, rounds = measured_until(planted, question)
    ours = weigh(question, planted.matrix, planted.tables(blocks))
    whole = weigh(question, planted.matrix, planted.tables())
    truth = np.log([planted.rate[cell.id] for cell in ours.states.cells])
    verdicts = [_verdict(question, planted, ours, whole, truth, panel) for panel in range(len(ours.states.panels))]
    assert decision.device_hours is not None
    assert planted.matrix.device_hours is not None
    of_cell = {cell.id: cell.configuration.name for cell in planted.cells}
    same_panels, false = all(same for same, _ in verdicts), any(false for _, false in verdicts)
    by_question = decision.decided or not (whole.answered >= 0).all()
    return Told(
        not false and by_question if question.form == "comparison" else same_panels,
        same_panels,
        false,
        decision.decided,
        bool((whole.answered >= 0).all()),
        len(verdicts),
        int((ours.answered >= 0).sum()),
        int((whole.answered >= 0).sum()),
        decision.device_hours / planted.matrix.device_hours,
        len({(of_cell[cell], composition, number) for (cell, composition), number in blocks.items()})
        / len(planted.matrix.leases),
        rounds,
    )


def _verdict(
    question: Question, planted: Planted, ours: Weighed, whole: Weighed, truth: Floats, panel: int
) -> tuple[bool, bool]:
    """Of a panel: whether it is answered as by the whole matrix, or as well; and whether what is shown is false."""
    states = ours.states
    slack = tolerance(question)
    here = [n for n in np.flatnonzero(states.panel == panel) if states.cells[n].id not in planted.fails]
    shown = int(ours.answered[panel])
    if question.form == "comparison":
        sides = [
            [truth[n] for n in here if states.cells[n].configuration.name == name]
            for name in (question.first, question.second)
        ]
        if not all(sides):
            return True, False
        apart = sides[0][0] - sides[1][0]
        false = bool([apart <= 0, apart >= 0, abs(apart) > slack][shown]) if shown >= 0 else False
        return not false and (shown >= 0 or int(whole.answered[panel]) < 0), false
    named, by_all = ours.answers[panel], whole.answers[panel]
    if not here or not named.size:
        return not here, False
    devices = np.log(states.devices)
    if question.form == "best":
        good = bool(truth[here].max() - truth[named[0]] <= slack)
    else:
        covered = all(any(truth[i] - truth[j] >= max(0, devices[i] - devices[j]) - slack for i in named) for j in here)
        good = covered and all(
            truth[j] - truth[i] >= min(0, devices[j] - devices[i]) - slack for j in named for i in here
        )
    same = {states.cells[n].id for n in named} == {whole.states.cells[n].id for n in by_all}
    return good or same, shown >= 0 and not good


@dataclass(frozen=True)
class Counted:
    """Of many campaigns, how many reached the goal, named what is right, said something false; mean share of the cost."""

    campaigns: tuple[Told, ...]

    @property
    def reached(self) -> int:
        return sum(each.reached for each in self.campaigns)

    @property
    def same(self) -> int:
        return sum(each.same for each in self.campaigns)

    @property
    def same_panels(self) -> int:
        return sum(each.same_panels for each in self.campaigns)

    @property
    def false(self) -> int:
        return sum(each.false for each in self.campaigns)

    @property
    def decided(self) -> int:
        return sum(each.decided for each in self.campaigns)

    @property
    def wrong(self) -> int:
        """Decided, and false."""
        return sum(each.decided and each.false for each in self.campaigns)

    @property
    def share(self) -> float:
        return float(np.mean([each.share for each in self.campaigns]))

    @property
    def composed(self) -> float:
        return float(np.mean([each.composed for each in self.campaigns]))


def count(form: str, seeds: Sequence[int], **fixed: Any) -> Counted:
    """What comes of questions of a form in campaigns with these seeds."""
    found = []
    for seed in seeds:
        planted = plant(seed, **fixed)
        found.append(told(planted, asked(planted, form, seed)))
    return Counted(tuple(found))
