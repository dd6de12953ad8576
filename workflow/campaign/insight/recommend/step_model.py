"""The model of the steps of one workload on one device model, fitted to its measured cells. Pure.

Where the inside of a step is known, it is `campaign.model`, with effects of shapes for what that leaves out. A program of unknown
inside (`command`) is taken for data-parallel training of equal layers, whose gradients are reduced beside the backward pass or
after it, or for effects alone: precision, options and batch, and those of a shape, on logarithms. Which of them, the error of
leaving configurations out decides. Effects hold for numbers of devices and kinds of attachment that were measured, and for no
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign import wording
from campaign.config.system_file import DeviceModel, SystemFile
from campaign.documents.cell import Cell, Scalar
from campaign.errors import ConfigError
from campaign.insight.recommend.observations import ObservedWorkload, configuration_of
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.model.description import Algorithm, ComputeTime, Network, NetworkLayer, StepCase, Topology, WorkSharing
from campaign.model.fit import STARTS, Effects, FittedSteps, Predicted, StepDesign, fit
from campaign.model.parameters import Floats, UncertainNumber
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK, links_of
from campaign.plan.step_cases import case_of, in_drawer, prior_of, topology_of
from campaign.workloads.protocol import Workload

FEWEST_CONFIGURATIONS = 4
MOST_SIMULATED, MOST_COMPARED = 240, 60
"""Cells that a simulation is fitted to, and that decide what a program of unknown inside is taken for; of more, some of each
configuration."""
_COMPUTE_FACTOR, _LINK_FACTOR = 10.0, 1.5
_START = UncertainNumber(0.01, 0.5, "1", "a guess", "share")
_FROM_LITTLE = {
    "fixed": 1e-5,
    "python": 1e-5,
    "slowdown": 2e-3,
    "attach": 1e-4,
    "crowd": 1e-5,
    "jitter": 5e-4,
    "launch": 1e-6,
}
"""What may cost less than public tables say, and how little."""
_ASSUMED: Sequence[tuple[WorkSharing, Algorithm]] = tuple(
    (WorkSharing(overlap=overlap), algorithm) for overlap in (True, False) for algorithm in ("nccl", "ring")
)
_ASSUMED_NETWORK, _TRAFFIC_FACTOR = Network((NetworkLayer((2**22,), 1.0, 2.0),) * 24), 100.0
"""Of a program of unknown inside, and the factor that its traffic may be off by."""
_VAGUE = (10.0,)
_SMALL = (0.0005, 0.002, 0.008, 0.03, 0.12)
_LARGE = (0.02, 0.05, 0.12, 0.3, 0.8)
SIMULATES, ASSUMES, ADDS = "simulation of a step", "simulation of an assumed step", "additive effects on the logarithm"
BATCH, SHAPE, CONFIGURATION = range(3)
"""Kinds of effects."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A workload and the system that it runs on. links: documents of measured links."""

    system: SystemFile
    workload: Workload
    links: Sequence[Mapping[str, Any]] = ()

    def runs(self, cell: Cell) -> bool:
        """Whether the workload runs on the configuration of a cell at all."""
        known = self.system.devices.get(cell.configuration.models[0], DeviceModel())
        kind = "cpu" if self.workload.predicts else known.runs_on
        return self.workload.refusal(cell) is None and self.workload.objection(cell, kind) is None


@dataclass(frozen=True)
class Checked:
    """What the model says of each measured cell when its configuration is left out of the fit; nan where nothing else tells.

    predicted_s: by cell; error_pct: of throughput, predicted over measured. strategy_median_pct, strategy_wider: by strategy, the
    median error and how much wider than stated intervals have to be.
    """

    predicted_s: Floats
    error_pct: Floats
    median_pct: float
    worst_pct: float
    by_configuration: Mapping[str, float]
    strategy_median_pct: Floats
    strategy_wider: Floats


@dataclass(frozen=True)
class StepModel:
    """level: a logarithm that what is fitted is relative to; freedom: of intervals."""

    observed: ObservedWorkload
    steps: _StepsOfRows
    fitted: FittedSteps
    level: float
    checked: Checked
    freedom: float

    @property
    def ways(self) -> set[str]:
        """Kinds of ways that were measured, or whose links are known otherwise."""
        links = (LOCAL, FABRIC, NETWORK) if self.simulates else ()
        known = [link for link in links if f"rate[{link}]" not in self.steps.guesses]
        further = {FABRIC + " + " + NETWORK} if FABRIC in known and NETWORK in known else set()
        return {*self.observed.cells["way"], *known, *further}

    @property
    def simulates(self) -> bool:
        """Whether steps are simulated, as the program is known or assumed to do them."""
        return bool(self.steps.references)

    @property
    def parts(self) -> str:
        """What predictions are made of, in words."""
        if not self.simulates:
            return ADDS
        return SIMULATES if self.steps.assumed is None else ASSUMES

    def runs(self, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Whether the workload runs on each of these rows at all."""
        program = self.steps.program
        if program is None or not self.simulates:
            return np.ones(len(frame), dtype=np.bool_)
        cells = [_cell(self.observed, row) for row in frame.to_dict("records")]
        return np.array([program.runs(each) for each in cells], dtype=np.bool_)

    def predict(self, frame: pd.DataFrame) -> Predicted:
        """Of rows with the columns of `ObservedWorkload.cells` that say what is run."""
        said = self.fitted.predict(self.steps.of(frame))
        wider = self.checked.strategy_wider[frame["strategy"].to_numpy(dtype=np.int64)]
        return Predicted(self.level + said.log_s, wider * said.sd)


def model_of(observed: ObservedWorkload, program: MeasuredProgram | None) -> StepModel | None:
    """Fit and check; None where fewer than FEWEST_CONFIGURATIONS were measured. program: None for one of unknown inside."""
    cells = observed.cells
    if cells["configuration"].nunique() < FEWEST_CONFIGURATIONS:
        return None
    rows = _StepsOfRows.of_program(observed, program)
    if program and not rows.references:
        some = np.union1d(
            _some_of_each(cells["configuration"], MOST_COMPARED), cells.drop_duplicates("group").index.to_numpy()
        )
        few = replace(observed, cells=cells.iloc[some].reset_index(drop=True))
        tried = [None, *_ASSUMED]
        models = [_fitted(few, _StepsOfRows.of_program(few, program, each)) for each in tried]
        errors = [np.nan_to_num(model.checked.median_pct, nan=np.inf) for model in models]
        rows = _StepsOfRows.of_program(observed, program, tried[int(np.argmin(errors))])
    return _fitted(observed, rows)


def _fitted(observed: ObservedWorkload, rows: _StepsOfRows) -> StepModel:
    cells = observed.cells
    steps, log_s = rows.of(cells), np.log(cells["step_s"].to_numpy(dtype=np.float64))
    level = 0.0 if rows.references else float(log_s.mean())
    some = _some_of_each(cells["configuration"], MOST_SIMULATED) if rows.references else np.arange(len(cells))
    # Nothing of what is assumed hides a parameter for long.
    starts = 0 if rows.assumed else STARTS
    fitted = fit(steps.take(some), log_s[some] - level, rows.prior, rows.guesses, starts)
    said = fitted.left_out(steps, cells["configuration"].tolist(), some)
    checked = _checked(observed, log_s, Predicted(level + said.log_s, said.sd))
    freedom = min(fitted.freedom, cells["configuration"].nunique() - 1.0)
    return StepModel(observed, rows, fitted, level, checked, freedom)


def _some_of_each(configurations: pd.Series[str], most: int) -> npt.NDArray[np.int64]:
    """Positions of at most so many cells, as many of each configuration, and others of the next one."""
    if len(configurations) <= most:
        return np.arange(len(configurations))
    turn = configurations.groupby(configurations, sort=False).cumcount()
    number = pd.Series(pd.factorize(configurations)[0], index=configurations.index)
    size = configurations.map(configurations.value_counts())
    turn = (turn + number * size // (number.max() + 1)) % size
    return np.sort(turn.to_numpy().argsort(kind="stable")[:most])


@dataclass(frozen=True)
class _StepsOfRows:
    """Rows of cells, measured or not, as steps of the model. references: by group, the case that those of its other shapes and
    batches are made of; none where nothing is simulated. assumed: how a program of unknown inside is taken to share the work."""

    observed: ObservedWorkload
    program: MeasuredProgram | None
    references: Sequence[StepCase]
    prior: Mapping[str, UncertainNumber]
    guesses: frozenset[str]
    levels: Sequence[tuple[int, str, Mapping[object, int]]]
    """Of effects that are levels: their kind, the column of rows, and the places of what was measured."""
    topologies: dict[object, Topology]
    assumed: tuple[WorkSharing, Algorithm] | None = None

    @classmethod
    def of_program(
        cls,
        observed: ObservedWorkload,
        program: MeasuredProgram | None,
        assumed: tuple[WorkSharing, Algorithm] | None = None,
    ) -> _StepsOfRows:
        cells = _with_levels(observed.cells)
        kinds = [(BATCH, "group batch"), *((SHAPE, name) for name in _SHAPES), (CONFIGURATION, "shape")]
        levels, place = [], 0
        for kind, column in kinds:
            found = {value: place + number for number, value in enumerate(dict.fromkeys(cells[column]))}
            levels.append((kind, column, found))
            place += len(found)
        references = _references(observed, program, assumed) if program else []
        prior, guesses = _prior(program, references) if program and references else ({}, frozenset())
        if references and assumed:
            prior[f"traffic[{assumed[0].parallel}]"] = UncertainNumber.about(1.0, _TRAFFIC_FACTOR, "1", "a guess")
        return cls(observed, program, references, prior, guesses, levels, {}, assumed)

    def of(self, frame: pd.DataFrame) -> StepDesign:
        """The steps of rows."""
        return StepDesign(
            tuple(self._case(row) for row in frame.to_dict("records")) if self.references else (), self._effects(frame)
        )

    def _case(self, row: Mapping[Any, Any]) -> StepCase:
        reference: StepCase = self.references[row["group"]]
        shape = tuple(row[name] for name in COLUMNS)
        if shape not in self.topologies:
            assert self.program is not None
            at = configuration_of(row)
            self.topologies[shape] = topology_of(at, reference.topology.algorithm, in_drawer(self.program.system, at))
        path = reference.input and replace(reference.input, storage=row["storage"])
        if reference.sharing.division:
            assert self.program is not None
            own = case_of(self.program.system, self.program.workload, _cell(self.observed, row))
            assert own is not None
            return replace(own, compute=reference.compute)
        return replace(reference, batch=int(row["batch"]), topology=self.topologies[shape], input=path)

    def _effects(self, frame: pd.DataFrame) -> Effects:
        rows = _with_levels(frame)
        smooth = list(_smooth(rows, self.observed, by_group=not self.references or bool(self.assumed)))
        count = sum(len(found) for _, _, found in self.levels)
        values = np.zeros((len(rows), count + len(smooth)))
        unseen = np.zeros((len(rows), 3))
        kinds = np.full(values.shape[1], SHAPE, dtype=np.int64)
        for kind, column, found in self.levels:
            kinds[list(found.values())] = kind
            places = np.array([found.get(value, -1) for value in rows[column]], dtype=np.int64)
            values[np.flatnonzero(places >= 0), places[places >= 0]] = 1.0
            unseen[:, kind] += places < 0
        for number, effect in enumerate(smooth):
            values[:, count + number] = effect
        sds = (_SMALL, _SMALL, _SMALL) if self.references else (_VAGUE, _LARGE, _SMALL)
        return Effects(values, kinds, sds, unseen)


_SHAPES = ("attach", "storage", "hosts", "ranks")


def _with_levels(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.copy()
    rows["group batch"] = list(zip(frame["group"], frame["batch"], strict=True))
    rows["shape"] = list(frame[list(COLUMNS)].itertuples(index=False, name=None))
    return rows


def _smooth(rows: pd.DataFrame, observed: ObservedWorkload, *, by_group: bool) -> Iterable[Floats]:
    """Effects of several devices, and in proportion to the logarithm of devices and hosts: by attachment, by strategy, or else by
    precision and options, and with the logarithm of the batch, since communication weighs less beside more compute."""
    ranks, hosts, batch = (np.log2(rows[name].to_numpy(dtype=np.float64)) for name in ("ranks", "hosts", "batch"))
    batch = batch - np.log2(observed.cells["batch"]).mean()
    of = rows["group" if by_group else "strategy"].to_numpy(dtype=np.int64)
    for each in ((ranks > 0).astype(np.float64), ranks / 3, hosts / 3):
        for number in range(len(observed.groups if by_group else observed.strategies)):
            yield np.asarray(each * (of == number))
        yield np.asarray(each * batch / 3)
        for attach in dict.fromkeys(observed.cells["attach"]):
            yield each * (rows["attach"] == attach).to_numpy(dtype=np.float64)


def _references(
    observed: ObservedWorkload, program: MeasuredProgram, assumed: tuple[WorkSharing, Algorithm] | None
) -> list[StepCase]:
    """By group, the case of one of its cells, whose compute time is the group's own; none where a step's inside is not known, and
    nothing is assumed."""
    found = []
    for number, group in enumerate(observed.groups):
        cells = observed.cells[observed.cells["group"] == number].sort_values("batch")
        row = cells.iloc[len(cells) // 2].to_dict()
        try:
            case = case_of(program.system, program.workload, _cell(observed, row))
        except ConfigError:  # of another version, whose options are not those of this one
            return []
        if case is None and assumed:
            case = _assumed_case(program.system, row, *assumed)
        if case is None:
            return []
        said = wording.describe(dict(zip(observed.named, group, strict=True)), observed.named)
        compute = tuple(_own(each, f"{each.key.split()[-2]} {said}", case.batch) for each in case.compute)
        found.append(replace(case, compute=compute))
    return found


def _assumed_case(system: SystemFile, row: Mapping[Any, Any], sharing: WorkSharing, algorithm: Algorithm) -> StepCase:
    """A cell of a program of unknown inside, as training of equal layers."""
    at, batch = configuration_of(row), int(row["batch"])
    compute = tuple(ComputeTime(f"{name} fp32", {batch: float(row["step_s"])}) for name in at.models)
    topology = topology_of(at, algorithm, in_drawer(system, at))
    return StepCase(_ASSUMED_NETWORK, compute, batch, "fp32", topology, sharing)


def _own(compute: ComputeTime, key: str, batch: int) -> ComputeTime:
    """Seconds that the group's cells tell. A line through rows in proportion to the batch tells no more than one of them."""
    rates = {seconds / known for known, seconds in compute.seconds.items()}
    one = max(rates) - min(rates) < 1e-9 * max(rates)
    return ComputeTime(key, {batch: compute.seconds[batch]} if one and batch in compute.seconds else compute.seconds)


def _cell(observed: ObservedWorkload, row: Mapping[Any, Any]) -> Cell:
    chosen = dict(zip(observed.named, observed.groups[row["group"]], strict=True))
    options = {name.removeprefix("option_"): _scalar(value) for name, value in chosen.items() if name != "precision"}
    given = {name: value for name, value in options.items() if value != ""}
    return Cell("", configuration_of(row), observed.workload, int(row["batch"]), str(chosen["precision"]), given)


def _scalar(value: Any) -> Scalar:
    """An option as it was before it stood in a column, where what is mixed is text, and '' where a cell has none."""
    if value in ("True", "False"):
        return bool(value == "True")
    for kind in (int, float):
        with suppress(ValueError):
            if kind(value) == float(value):
                return kind(value)
    return str(value)


def _prior(
    program: MeasuredProgram, references: Sequence[StepCase]
) -> tuple[dict[str, UncertainNumber], frozenset[str]]:
    """What is known of the parameters before, and the names of those of which it is nothing. What a system file states of links is
    wrong by more than a simulation without measurements assumes."""
    prior = prior_of(program.system, program.workload)
    if program.system.emulation is None:
        prior |= {name: replace(prior[name], low=least) for name, least in _FROM_LITTLE.items()}
    guesses = set()
    for case in references:
        if (parallel := case.sharing.parallel) != "ddp":
            prior[f"traffic[{parallel}]"] = UncertainNumber.about(1.0, 2.0, "1", "a guess")
            prior[f"growth[{parallel}]"] = UncertainNumber(-0.7, 0.7, "1", "a guess", "linear")
        for compute in case.compute:
            prior[f"compute[{compute.key}]"] = UncertainNumber.about(1.0, _COMPUTE_FACTOR, "1", "a guess")
            prior[f"start[{compute.key}]"] = _START
            guesses |= {f"compute[{compute.key}]", f"start[{compute.key}]"}
    emulation, predicts = program.system.emulation, program.workload.predicts
    scale, dilation = (emulation.scale, emulation.time_dilation) if emulation and predicts else (1.0, 1.0)
    measured = _measured(program.links)
    for kind in (LOCAL, FABRIC, NETWORK):
        rate = f"rate[{kind}]"
        if kind in measured:
            alpha_s, bytes_per_s, factor, source = measured[kind]
            prior[rate] = UncertainNumber.about(bytes_per_s / scale, factor, "byte/s", source)
            prior[f"latency[{kind}]"] = UncertainNumber.about(alpha_s / dilation, 2 * factor, "s", source)
        elif rate in prior:
            prior[rate] = UncertainNumber.about(prior[rate].median, _LINK_FACTOR, "byte/s", prior[rate].source)
        else:
            prior[rate] = prior["rate"]
            guesses.add(rate)
    return prior, frozenset(guesses)


def _measured(links: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float, float, str]]:
    """(latency in s, bytes/s, factor that they may be off by, source) by kind of link: of all-reduces before messages."""
    reduced: dict[str, list[tuple[float, float]]] = {}
    sent: dict[str, list[tuple[float, float]]] = {}
    for each in links:
        document = each["document"]
        model = document.get("model") or {}
        crossed = {link for row in document["kinds"] for kind in row if kind for link in links_of(kind)}
        if len(crossed) == 1 and (found := model.get("allreduce")):
            reduced.setdefault(crossed.pop(), []).append((found["alpha_us"], found["gb_per_s"]))
        for kind, found in (model.get("messages") or {}).items():
            sent.setdefault(kind, []).append((found["alpha_us"], found["gb_per_s"]))
    told = {}
    for models, factor, source in ((sent, 2.0, "measured messages"), (reduced, 1.5, "measured all-reduces")):
        for kind, fits in models.items():
            sound = [(alpha, rate) for alpha, rate in fits if alpha > 0 and 0 < rate < np.inf]
            if sound:
                alpha, rate = (median(each[n] for each in sound) for n in (0, 1))
                told[kind] = (alpha * 1e-6, rate * 1e9, factor, source)
    return told


def _checked(observed: ObservedWorkload, log_s: Floats, said: Predicted) -> Checked:
    error = log_s - said.log_s  # of the rate: it is the inverse of the step time
    pct = 100 * np.expm1(error)
    configurations, several = observed.cells["configuration"].to_numpy(dtype=str), len(observed.strategies) > 1
    # One device communicates with nobody, and tells nothing of a strategy where there are several.
    tells = (observed.cells["ranks"] > 1).to_numpy() | (not several)
    own = [(observed.cells["strategy"] == place).to_numpy() & tells for place in range(len(observed.strategies))]
    return Checked(
        predicted_s=np.exp(said.log_s),
        error_pct=pct,
        median_pct=_median(np.abs(pct)),
        worst_pct=float(np.nanmax(np.abs(pct))) if np.isfinite(pct).any() else float("nan"),
        by_configuration={name: _median(np.abs(pct[configurations == name])) for name in dict.fromkeys(configurations)},
        strategy_median_pct=np.array([_median(np.abs(pct[each])) for each in own]),
        strategy_wider=np.array([max(1.0, _rms((error / said.sd)[each])) for each in own]),
    )


def _rms(values: Floats) -> float:
    told = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(told**2))) if len(told) else 1.0


def _median(values: Floats) -> float:
    told = values[np.isfinite(values)]
    return float(np.median(told)) if len(told) else float("nan")
