"""Campaigns with a planted truth of which a question is asked: what they can measure, and what any part of them would measure.

The truth is a step of compute, contention, storage and a ring all-reduce,
times deviations of each configuration and each cell that no formula knows. Compositions, hosts and runs deviate as well; large
batches run out of memory. A lease that is composed again for another round deviates anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtrit

from campaign.documents.cell import Cell, Configuration, Settings
from campaign.documents.run_numbers import run_number
from campaign.insight.until import Decision, PricedMatrix, Question, decide
from campaign.insight.until.cell_states import PricedLease
from campaign.insight.until.evidence import NOTHING, QuestionEvidence
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
    drift: float = 0.0
    """By how much the system becomes slower from one composition to the next."""
    prior: Mapping[str, float] | None = None
    """What a model expects, see `expecting`."""

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
        later = runs["composition"].to_numpy() - 1 if blocks is None else use - 1
        value = runs["value"].to_numpy() * np.exp(-self.of_lease[lease, use] - self.drift * later)
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
    share = fixed.get("share", random.uniform(0.3, 1.0))
    slow = fixed.get("slow", random.uniform(0.02, 0.08) if random.random() < 0.3 else 0.0)
    outlying = fixed.get("outlying", random.choice([0.0, 0.01]))
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
        decision = decide(question, planted.matrix, planted.tables(blocks) if blocks else None, planted.prior)
        if decision.stop:
            return decision, blocks, number
        blocks |= {(cell, lease.composition): number for lease in decision.next for cell in lease.cells}
    raise AssertionError(f"{question.text}: no end after {MOST_ROUNDS} rounds")


def followed(planted: Planted, question: Question) -> tuple[Decision, int]:
    """The last decision on a question, and the number of rounds."""
    decision, _, rounds = measured_until(planted, question)
    return decision, rounds


KINDS = ("smooth", "rough", "cliff", "ties", "noisy")


def surface(
    kind: str,
    seed: int,
    size: tuple[int, int, int] = (12, 3, 2),
    compositions: int = 3,
    *,
    faults: str = "",
    run_s: float = 30.0,
    compose_s: float = 120.0,
    share: float = 1.0,
) -> Planted:
    """Configurations x batches x precisions, all cells of a configuration on its leases; two runs each.

    Leases deviate by 2 %, runs by 1 % (sd); share: of the variance of leases, what all cells on one have in common. kind:
    `smooth`: effects of the axes; `rough`: every cell deviates by 8 % on top; `cliff`: a third of configurations lose 37 % at
    the largest batch; `ties`: the five best configurations are equal; `noisy`: twice the spread. faults: `once`: the best cell
    of each panel fails on its first composition, a twentieth of the others on one; `memory`: a third of configurations run out
    of memory at the largest batch; `drift`: 1.5 % from one composition to the next.
    """
    random = np.random.default_rng([seed, KINDS.index(kind), *size, compositions])
    configurations, batches, precisions = size
    shapes = _shapes(random, configurations)
    settings = Settings(repetitions=2 * compositions, compositions=compositions)
    of_configuration = np.sort(0.15 * random.standard_normal(configurations))
    if kind == "ties":
        of_configuration[-5:] = of_configuration[-1]
    random.shuffle(of_configuration)
    of_batch = np.concatenate([[0.0], np.cumsum(random.uniform(0.02, 0.25, batches - 1))])
    of_precision = np.concatenate([[0.0], np.cumsum(random.uniform(0.1, 0.5, precisions - 1))])
    by_batch, by_precision = (
        0.02 * random.standard_normal(configurations),
        0.02 * random.standard_normal((configurations, precisions)),
    )
    if kind == "ties":
        by_batch, by_precision = by_batch * 0, by_precision * 0
    hit = random.random(configurations) < 1 / 3
    full = random.random(configurations) < 1 / 3
    cells, rate, fails = [], {}, set()
    for c, shape in enumerate(shapes):
        for p in range(precisions):
            for b in range(batches):
                cell = Cell(f"{shape.name}-p{p}-{2**b}", shape, "w", 2**b, f"p{p}", {}, settings)
                log = of_configuration[c] + of_batch[b] + of_precision[p] + by_batch[c] * b + by_precision[c, p]
                log += 0.08 * random.standard_normal() * (kind == "rough")
                log -= 0.46 * (kind == "cliff" and hit[c] and b == batches - 1)
                cells.append(cell)
                rate[cell.id] = 100 * float(np.exp(log))
                if faults == "memory" and full[c] and b == batches - 1:
                    fails.add(cell.id)
    once = [compose_s * shape.devices / 3600 for shape in shapes]
    leases = tuple(
        PricedLease(f"{shape.name}.c{n}", shape, n, mine, once[c], (2 * run_s * shape.devices / 3600,) * len(mine))
        for n in range(1, compositions + 1)
        for c, shape in enumerate(shapes)
        for mine in [tuple(cell for cell in cells if cell.configuration is shape)]
    )
    matrix = PricedMatrix(leases)
    more = 2.0 if kind == "noisy" else 1.0
    fixed = {"composition_sd": 0.02 * more, "run_sd": 0.01 * more, "share": share, "slow": 0.0, "outlying": 0.0}
    runs, of_lease, hosts = _runs(random, matrix, rate, frozenset(fails), 2, fixed)
    if faults == "once":
        panels = {
            p: max((c for c in cells if c.precision == f"p{p}"), key=lambda c: rate[c.id]).id for p in range(precisions)
        }
        struck = {(each, 1) for each in panels.values()}
        others = {cell.id: int(random.integers(1, compositions + 1)) for cell in cells if random.random() < 0.05}
        struck |= {each for each in others.items() if each[0] not in panels.values()}
        hit_runs = [key in struck for key in zip(runs["cell_id"], runs["composition"], strict=True)]
        runs = runs.assign(status=runs["status"].mask(hit_runs, "crashed"), value=runs["value"].mask(hit_runs))
    return Planted(matrix, rate, frozenset(fails), runs, of_lease, hosts, 0.015 if faults == "drift" else 0.0)


def by_devices(planted: Planted) -> Planted:
    """The same where throughput grows as devices**0.85, and less by 10 % where some of them are behind the fabric."""
    more = {
        cell.id: cell.configuration.devices**0.85 * (0.9 if cell.configuration.fabric_devices else 1.0)
        for cell in planted.cells
    }
    value = planted.runs["value"] * planted.runs["cell_id"].map(more)
    rate = {name: each * more[name] for name, each in planted.rate.items()}
    return replace(planted, rate=rate, runs=planted.runs.assign(value=value))


def expecting(planted: Planted, seed: int, fabric: float = 0.0) -> Planted:
    """The same with what a model expects. It is off by 3 % (sd) for each configuration and for each cell, and by `fabric` (a
    logarithm) for configurations with devices behind the fabric."""
    random = np.random.default_rng([seed, 3])
    of = {cell.configuration.name: 0.03 * random.standard_normal() for cell in planted.cells}
    off = {
        cell.id: of[cell.configuration.name]
        + 0.03 * random.standard_normal()
        + fabric * (cell.configuration.fabric_devices > 0)
        for cell in planted.cells
    }
    return replace(planted, prior={name: float(np.log(rate)) + off[name] for name, rate in planted.rate.items()})


@dataclass(frozen=True)
class Told:
    """Of one campaign. decided, wrong: the question, and something false was stated as shown; one_look: whether a test of the
    whole matrix decides it; of that matrix, compositions and hours (of devices, with composing)."""

    decided: bool
    wrong: bool
    one_look: bool
    compositions: float
    hours: float
    rounds: int
    decision: Decision


def told(planted: Planted, question: Question) -> Told:
    """What came of a question."""
    decision, blocks, rounds = measured_until(planted, question)
    evidence = QuestionEvidence(question, planted.matrix, planted.tables(blocks), planted.prior)
    states = evidence.states
    return Told(
        decision.decided,
        any(_is_false(planted, evidence, number) for number in range(len(evidence.panels))),
        one_look(planted, question),
        (states.composed + states.beside) / states.compositions,
        states.spent / states.whole,
        rounds,
        decision,
    )


def _is_false(planted: Planted, evidence: QuestionEvidence, number: int) -> bool:
    """Whether what is shown of a panel is false."""
    panel, states, slack = evidence.panels[number], evidence.states, evidence.question.tolerance
    truth = np.log([planted.rate[cell.id] for cell in states.cells])
    here = [n for n in np.flatnonzero(states.panel == number) if states.cells[n].id not in planted.fails]
    if panel.answered < 0 or panel.answered == NOTHING:
        return False
    if evidence.question.form == "comparison":
        apart = truth[panel.named[0]] - truth[panel.named[1]]
        return bool([apart <= 0, apart >= 0, abs(apart) > slack][panel.answered])
    if not panel.named.size:
        return bool(here)
    if evidence.question.form == "best":
        return bool(truth[here].max() - truth[panel.named[0]] > slack)
    devices, named = np.log(states.devices), panel.named
    covered = all(any(truth[i] - truth[j] >= max(0, devices[i] - devices[j]) - slack for i in named) for j in here)
    return not covered or any(
        truth[j] - truth[i] < min(0, devices[j] - devices[i]) - slack for j in named for i in here
    )


def one_look(planted: Planted, question: Question) -> bool:
    """Whether a t-test of all compositions decides the question: spread pooled over all configurations, 5 % divided over all pairs
    (Bonferroni)."""
    runs = planted.tables().runs
    runs = runs[runs["status"] == "ok"].assign(good=lambda rows: np.log(rows["value"]))
    means = runs.groupby(["cell_id", "composition"])["good"].mean().unstack()
    about = {cell.id: cell for cell in planted.cells if question.about(cell) and cell.id in means.index}
    spread = means.var(axis=1, ddof=1)
    variance = float(spread.mean())
    configurations = {cell.configuration.name for cell in planted.cells}
    k = means.notna().sum(axis=1)
    freedom = len(configurations) * (int(k.max()) - 1)
    means = means.mean(axis=1)
    if question.form == "frontier":
        evidence = QuestionEvidence(question, planted.matrix, planted.tables())
        asks = -stdtrit(freedom, 0.05 / sum(panel.cells.size * (panel.cells.size - 1) for panel in evidence.panels))
        names = [cell.id for cell in evidence.states.cells]
        good, error = means.reindex(names).to_numpy(), np.sqrt(variance / k.reindex(names).to_numpy())
        every = [panel.pairs for panel in evidence.panels]
        return all(
            (good[of.better] - good[of.other] - of.least > asks * np.hypot(error[of.better], error[of.other])).all()
            for of in every
        )
    panels: dict[Any, list[str]] = {}
    for name, cell in about.items():
        batch = cell.batch if question.form == "comparison" else 0
        panels.setdefault((cell.workload, cell.precision, batch), []).append(name)
    slack = question.tolerance
    if question.form == "comparison":
        asks = -stdtrit(freedom, 0.05 / (2 * len(panels)))
        for names in panels.values():
            if len(names) == 2:
                apart = abs(means[names[0]] - means[names[1]])
                half = asks * np.sqrt(variance * (1 / k[names[0]] + 1 / k[names[1]]))
                if not (apart > half or apart < slack - half):
                    return False
        return True
    asks = -stdtrit(freedom, 0.05 / max(1, sum(len(names) - 1 for names in panels.values())))
    for names in panels.values():
        best = max(names, key=lambda name: means[name])
        if any(
            means[best] - means[n] + slack <= asks * np.sqrt(variance * (1 / k[best] + 1 / k[n]))
            for n in names
            if n != best
        ):
            return False
    return True


@dataclass(frozen=True)
class Counted:
    """Of many campaigns: how many each decided; shares of the matrix are means over those that one look decides."""

    campaigns: tuple[Told, ...]

    @property
    def one_look(self) -> int:
        return sum(each.one_look for each in self.campaigns)

    @property
    def of_these(self) -> int:
        return sum(each.one_look and each.decided for each in self.campaigns)

    @property
    def decided(self) -> int:
        return sum(each.decided for each in self.campaigns)

    @property
    def wrong(self) -> int:
        return sum(each.wrong for each in self.campaigns)

    def share(self, of: str, decided: bool = True) -> float:
        found = [getattr(each, of) for each in self.campaigns if each.one_look == decided]
        return float(np.mean(found)) if found else float("nan")


def asked_all(planted: Iterable[Planted], form: str) -> Counted:
    """What comes of a question of a form in each of these campaigns."""
    return Counted(tuple(told(each, asked(each, form, number)) for number, each in enumerate(planted)))
