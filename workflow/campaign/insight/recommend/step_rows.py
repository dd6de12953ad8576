"""Rows of cells, measured or not, as steps of the model, and what is known of its parameters beforehand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.config.system_file import DeviceModel, SystemFile
from campaign.documents.cell import Cell, Scalar
from campaign.errors import ConfigError
from campaign.insight.recommend.observations import configuration_of
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.model.description import Algorithm, ComputeTime, Network, NetworkLayer, StepCase, Topology, WorkSharing
from campaign.model.fit import StepDesign
from campaign.model.parameters import DEFAULTS, Floats, UncertainNumber
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK, links_of
from campaign.plan.step_cases import case_of, in_drawer, prior_of, topology_of
from campaign.workloads.protocol import Workload

Assumed = tuple[WorkSharing, Algorithm]
"""How a program of unknown inside is taken to share the work of a step."""

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
_ASSUMED_NETWORK, _TRAFFIC_FACTOR = Network((NetworkLayer((2**22,), 1.0, 2.0),) * 24), 100.0
"""Of a program of unknown inside, and the factor that its traffic may be off by."""
_BATCH, _SHAPE, _CONFIGURATION = range(3)
"""Kinds of effects."""
_LEVELS = {
    "group batch": _BATCH,
    **dict.fromkeys(("attach", "storage", "hosts", "ranks"), _SHAPE),
    "shape": _CONFIGURATION,
}
"""Columns whose values have an effect each."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A workload and the system that it runs on, each None where it is not known. links: documents of measured links."""

    system: SystemFile | None = None
    workload: Workload | None = None
    links: Sequence[Mapping[str, Any]] = ()

    def runs(self, cell: Cell) -> bool:
        """Whether the workload runs on the configuration of a cell at all."""
        if self.workload is None or self.system is None:
            return True
        known = self.system.devices.get(cell.configuration.device, DeviceModel())
        kind = "cpu" if self.workload.predicts else known.runs_on
        return self.workload.refusal(cell) is None and self.workload.objection(cell, kind) is None


class UnknownInsideError(Exception):
    """The model does not know what a step of a program does."""


class StepRows:
    """cells: measured ones (`observations.observed`); named: columns of precision and options. assumed: how a program of
    unknown inside is taken to share the work; None where a step's inside is known.

    prior: of the parameters; guesses: names of those of which nothing is known beforehand.
    """

    def __init__(
        self,
        cells: pd.DataFrame,
        named: Sequence[str],
        program: MeasuredProgram,
        assumed: Assumed | None = None,
    ) -> None:
        self.program, self.assumed, self._named = program, assumed, named
        self._effects = _Effects(cells, by="group" if assumed else "strategy")
        self._topologies: dict[tuple[Any, ...], Topology] = {}
        self._references: dict[str, StepCase] = {}
        for group, own in cells.sort_values("batch", kind="stable").groupby("group", sort=False):
            row = own.iloc[len(own) // 2].to_dict()
            case = self._reference(row)
            said = wording.describe(row, named)
            compute = tuple(_own(each, f"{each.key.split()[-2]} {said}", case.batch) for each in case.compute)
            self._references[str(group)] = replace(case, compute=compute)
        self.prior, self.guesses = self._known_before()

    def runs(self, frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether the workload runs on each of these rows at all."""
        return np.array([self.program.runs(self._cell(row)) for row in frame.to_dict("records")], dtype=np.bool_)

    def of(self, frame: pd.DataFrame) -> StepDesign:
        """The steps of rows with the columns of `cells` that say what is run."""
        return self._effects.design(frame, [self._case(row) for row in frame.to_dict("records")])

    def _case(self, row: Mapping[Any, Any]) -> StepCase:
        reference, system = self._references[row["group"]], self.program.system
        if reference.sharing.division:
            assert system is not None
            assert self.program.workload is not None
            own = case_of(system, self.program.workload, self._cell(row))
            assert own is not None
            return replace(own, compute=reference.compute)
        path = reference.input and replace(reference.input, storage=row["storage"])
        topology = self._topology(row, reference.topology.algorithm)
        return replace(reference, batch=int(row["batch"]), topology=topology, input=path)

    def _topology(self, row: Mapping[Any, Any], algorithm: Algorithm) -> Topology:
        key = (algorithm, *(row[name] for name in COLUMNS))
        if key not in self._topologies:
            at, system = configuration_of(row), self.program.system
            self._topologies[key] = topology_of(at, algorithm, in_drawer(system, at) if system else 0)
        return self._topologies[key]

    def _reference(self, row: Mapping[Any, Any]) -> StepCase:
        """The case of a cell."""
        if self.assumed:
            sharing, algorithm = self.assumed
            batch, model = int(row["batch"]), configuration_of(row).device
            compute = (ComputeTime(f"{model} fp32", {batch: float(row["step_s"])}),)
            return StepCase(_ASSUMED_NETWORK, compute, batch, "fp32", self._topology(row, algorithm), sharing)
        case = None
        if self.program.system and self.program.workload:
            with suppress(ConfigError):  # of another version, whose options are not those of this one
                case = case_of(self.program.system, self.program.workload, self._cell(row))
        if case is None:
            raise UnknownInsideError
        return case

    def _cell(self, row: Mapping[Any, Any]) -> Cell:
        options = {name.removeprefix("option_"): _scalar(row[name]) for name in self._named if name != "precision"}
        given = {name: value for name, value in options.items() if value != ""}
        return Cell("", configuration_of(row), row["workload"], int(row["batch"]), str(row["precision"]), given)

    def _known_before(self) -> tuple[dict[str, UncertainNumber], frozenset[str]]:
        """What a system file states of links is wrong by more than a simulation without measurements assumes."""
        system, workload = self.program.system, self.program.workload
        prior = prior_of(system, workload) if system else dict(DEFAULTS)
        emulation = system.emulation if system else None
        if emulation is None:
            prior |= {name: replace(prior[name], low=least) for name, least in _FROM_LITTLE.items()}
        guesses = set()
        for case in self._references.values():
            if (parallel := case.sharing.parallel) != "ddp" or self.assumed:
                factor = _TRAFFIC_FACTOR if self.assumed else 2.0
                prior[f"traffic[{parallel}]"] = UncertainNumber.about(1.0, factor, "1", "a guess")
            if parallel != "ddp":
                prior[f"growth[{parallel}]"] = UncertainNumber(-0.7, 0.7, "1", "a guess", "linear")
            for compute in case.compute:
                prior[f"compute[{compute.key}]"] = UncertainNumber.about(1.0, _COMPUTE_FACTOR, "1", "a guess")
                prior[f"start[{compute.key}]"] = _START
                guesses |= {f"compute[{compute.key}]", f"start[{compute.key}]"}
        predicts = workload is not None and workload.predicts
        scale, dilation = (emulation.scale, emulation.time_dilation) if emulation and predicts else (1.0, 1.0)
        measured = _measured(self.program.links)
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


class _Effects:
    """What the simulation leaves out: effects of the levels of columns, and of several devices, in proportion to the logarithms of
    devices and hosts: by attachment, by strategy or by precision and options (`by`), and with the logarithm of the batch, since
    communication weighs less beside more compute."""

    def __init__(self, cells: pd.DataFrame, by: str) -> None:
        cells, self._by = _with_levels(cells), by
        self._levels = {column: list(dict.fromkeys(cells[column])) for column in (*_LEVELS, by)}
        self._batch = float(np.log2(cells["batch"]).mean())

    def design(self, frame: pd.DataFrame, cases: Sequence[StepCase]) -> StepDesign:
        rows = _with_levels(frame)
        levels = {column: self._level(rows, column) for column in self._levels}
        smooth = np.column_stack(list(self._smooth(rows, levels[self._by], levels["attach"])))
        kinds = [kind for column, kind in _LEVELS.items() for _ in self._levels[column]]
        unseen = np.zeros((len(rows), 3))
        for column, kind in _LEVELS.items():
            unseen[:, kind] += ~levels[column].any(axis=1)
        values = np.hstack([*(levels[column] for column in _LEVELS), smooth])
        return StepDesign(cases, values, np.array([*kinds, *[_SHAPE] * smooth.shape[1]]), unseen)

    def _level(self, rows: pd.DataFrame, column: str) -> Floats:
        """[row][level]"""
        places = {value: place for place, value in enumerate(self._levels[column])}
        found = np.array([places.get(value, -1) for value in rows[column]])
        return np.asarray(found[:, None] == np.arange(len(places)), dtype=np.float64)

    def _smooth(self, rows: pd.DataFrame, of: Floats, attach: Floats) -> Iterator[Floats]:
        ranks, hosts, batch = (np.log2(rows[name].to_numpy(dtype=np.float64)) for name in ("ranks", "hosts", "batch"))
        for each in ((ranks > 0).astype(np.float64), ranks / 3, hosts / 3):
            yield np.column_stack([each[:, None] * of, each * (batch - self._batch) / 3, each[:, None] * attach])


def _with_levels(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.copy()
    rows["group batch"] = list(zip(frame["group"], frame["batch"], strict=True))
    rows["shape"] = list(frame[list(COLUMNS)].itertuples(index=False, name=None))
    return rows


def _own(compute: ComputeTime, key: str, batch: int) -> ComputeTime:
    """Seconds that the group's cells tell. A line through rows in proportion to the batch tells no more than one of them."""
    rates = {seconds / known for known, seconds in compute.seconds.items()}
    one = max(rates) - min(rates) < 1e-9 * max(rates)
    return ComputeTime(key, {batch: compute.seconds[batch]} if one and batch in compute.seconds else compute.seconds)


def _scalar(value: Any) -> Scalar:
    """An option as it was before it stood in a column, where what is mixed is text, and '' where a cell has none."""
    if value in ("True", "False"):
        return bool(value == "True")
    for kind in (int, float):
        with suppress(ValueError):
            if kind(value) == float(value):
                return kind(value)
    return str(value)


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
