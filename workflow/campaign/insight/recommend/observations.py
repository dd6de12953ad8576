"""What the model is fitted to: the measured cells of one workload on one device model, and what is known of the links. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from campaign.insight.recommend.model import Rows
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK, links_of

# Bytes that a rank hands to all-reduces in a step: as counted, else as many as the gradients in fp32 have.
_BYTES = (
    ("allreduce_bytes_per_step", 1.0),
    ("gradient_bytes", 1.0),
    ("parameters", 4.0),
)
_SENT = "communication_bytes_per_step"
STRATEGY = ("parallel", "accumulation", "bucket_mib", "overlap")
"""Options that say how devices share the work, and what of their communication can hide."""
_US, _GB = 1e-6, 1e9
_PLAIN_ALPHA_S, _PLAIN_B_PER_S = 20e-6, 10e9


@dataclass(frozen=True)
class LinkStart:
    """What is known of a kind of way before the fit: latency in s, bandwidth in bytes/s, and a factor that they may be off by."""

    alpha_s: float
    bytes_per_s: float
    factor: float
    source: str

    @property
    def known(self) -> bool:
        """Whether anybody measured or stated it."""
        return bool(self.source)


@dataclass(frozen=True)
class ObservedWorkload:
    """Measured cells of one workload on one device model.

    cells: rows of the cells table with `step_s`, `bytes`, `allreduce_s` (nan where unknown), `group`, `way` ('' for one rank).
    groups: precision and options by index of `group`, columns `named`. ways: kinds of ways that were measured, or are known
    otherwise. reference: the storage that others are compared with. strategies: options of STRATEGY in words, '' where there is
    one strategy; strategy: that of each group; unlike_ring: those that communicate by other collectives than the all-reduce.
    """

    workload: str
    device: str
    cells: pd.DataFrame
    groups: tuple[tuple[Any, ...], ...]
    named: tuple[str, ...]
    ways: tuple[str, ...]
    reference: str
    storages: tuple[str, ...]
    strategies: tuple[str, ...] = ("",)
    strategy: tuple[int, ...] = ()
    unlike_ring: tuple[str, ...] = ()

    def rows(self, cells: pd.DataFrame | None = None) -> Rows:
        """Rows of these cells, or of others with the same columns; nothing is known there of a way that is not in `ways`."""
        frame = self.cells if cells is None else cells
        place = {name: position for position, name in enumerate(self.ways)}
        stored = {name: position for position, name in enumerate(self.storages)}
        number = {name: frame[name].to_numpy(dtype=np.float64) for name in ("batch", "ranks", "devices_used", "bytes")}
        return Rows(
            batch=number["batch"],
            ranks=number["ranks"],
            on_host=number["devices_used"],
            fabric=np.array(frame["attach"] != LOCAL, dtype=np.float64),
            group=frame["group"].to_numpy(dtype=np.int64),
            way=np.array([place.get(way, -1) for way in frame["way"]], dtype=np.int64),
            storage=np.array([stored.get(name, -1) for name in frame["storage"]], dtype=np.int64),
            bytes=number["bytes"],
        )


def way_of(hosts: int, attach: str, ranks: int) -> str:
    """The longest kind of way in a ring over the ranks, as `campaign.observe.links.document` names it; '' for one rank."""
    if ranks < 2:
        return ""
    through = f"{FABRIC}-p2p" if attach.endswith("-p2p") else FABRIC
    crossed = [*([through] if attach != LOCAL else []), *([NETWORK] if hosts > 1 else [])]
    return " + ".join(crossed) or LOCAL


def with_ways(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of configurations with their `way`."""
    shapes = zip(frame["hosts"], frame["attach"], frame["ranks"], strict=True)
    return frame.assign(way=pd.Series([way_of(*shape) for shape in shapes], index=frame.index, dtype="str"))


def observed(
    runs: pd.DataFrame, cells: pd.DataFrame, named: Sequence[str], known_ways: Sequence[str] = ()
) -> list[ObservedWorkload]:
    """All workloads and device models that were measured. named: columns of precision and options; known_ways: kinds of ways that
    something is known of without a measured cell."""
    measured = cells[(cells["n_ok"] > 0) & (cells["mean"] > 0)].reset_index(drop=True)
    measured = with_ways(measured).assign(step_s=measured["batch_global"] / measured["mean"])
    measured = measured.merge(_metrics(runs), on="cell_id", how="left")
    found = []
    for (workload, device), own in measured.groupby(["workload", "device"], sort=False):
        levels = own[list(named)].drop_duplicates().itertuples(index=False, name=None)
        groups = tuple(levels)
        place = {group: position for position, group in enumerate(groups)}
        own = own.assign(group=[place[each] for each in own[list(named)].itertuples(index=False, name=None)])
        strategies = _strategies(groups, named)
        own = _with_bytes(own.reset_index(drop=True))
        other = own.loc[(own["ranks"] > 1) & own["sent"].notna() & own["allreduced"].isna(), "group"]
        stored = own["storage"].value_counts()
        reference = LOCAL if LOCAL in stored.index else str(stored.index[0])
        found.append(
            ObservedWorkload(
                str(workload),
                str(device),
                own,
                groups,
                tuple(named),
                tuple(sorted({*own["way"], *known_ways} - {""})),
                reference,
                tuple(sorted(set(own["storage"]) - {reference})),
                tuple(dict.fromkeys(strategies)),
                tuple(list(dict.fromkeys(strategies)).index(each) for each in strategies),
                tuple(dict.fromkeys(strategies[group] for group in sorted(set(other)))),
            )
        )
    return found


def divided_cells(runs: pd.DataFrame) -> Sequence[str]:
    """Cells whose model was divided over several devices."""
    kinds = [name for name in ("tensor_parallel_bytes_per_step", "pipeline_parallel_bytes_per_step") if name in runs]
    cells: list[str] = runs.loc[(runs[kinds] > 0).any(axis="columns"), "cell_id"].unique().tolist()
    return cells


def _strategies(groups: Sequence[tuple[Any, ...]], named: Sequence[str]) -> list[str]:
    """The strategy of each group, by those options that differ."""
    columns = [(name, [group[place] for group in groups]) for place, name in enumerate(named)]
    differ = [
        (name.removeprefix("option_"), values)
        for name, values in columns
        if name.removeprefix("option_") in STRATEGY and len({str(value) for value in values}) > 1
    ]
    return [
        ", ".join(str(values[place]) if name == "parallel" else f"{name} {values[place]}" for name, values in differ)
        for place in range(len(groups))
    ]


def _metrics(runs: pd.DataFrame) -> pd.DataFrame:
    """A table by cell: bytes of a step, seconds of bare all-reduces, watts of a device; nan where no valid run tells."""
    ok = runs[runs["status"] == "ok"]
    size = pd.Series(np.nan, index=ok.index)
    for name, scale in _BYTES:
        if name in ok:
            size = size.fillna((ok[name] * scale).where(ok[name] > 0))
    nothing = pd.Series(np.nan, index=ok.index)
    # A ring all-reduce of S bytes sends 2(n-1)/n S; what is sent is counted as if it were one.
    sent = ok[_SENT] / (2 * (1 - 1 / ok["ranks"])) if _SENT in ok else nothing
    sent = sent.where(ok["ranks"] > 1)
    energy = ok.get("energy_per_sample_j", nothing)
    told = pd.DataFrame(
        {
            "cell_id": ok["cell_id"],
            "bytes": sent.fillna(size),
            "sent": sent,
            "allreduced": ok.get(_BYTES[0][0], nothing),
            "allreduce_s": ok["allreduce_s"].where(ok["allreduce_s"] > 0) if "allreduce_s" in ok else nothing,
            "device_w": energy * ok["throughput_per_s"] / ok["ranks"],
        }
    )
    return told.groupby("cell_id", as_index=False, sort=False).mean()


def _with_bytes(cells: pd.DataFrame) -> pd.DataFrame:
    """One rank exchanges nothing and may tell nothing: all cells of a group get what several ranks exchange."""
    several = cells["bytes"].where(cells["ranks"] > 1).groupby(cells["group"]).transform("median")
    alone = cells["bytes"].groupby(cells["group"]).transform("median")
    return cells.assign(bytes=several.fillna(alone))


def link_starts(
    links: Iterable[Mapping[str, Any]], system_links: Mapping[str, Any], scale: float = 1.0
) -> dict[str, LinkStart]:
    """What is known of every kind of way: measured all-reduces before messages, both before the system file; else a guess.

    links: as in tables; system_links: by link, `gb_per_s` and `latency_us`; scale: of emulated links.
    """
    reduced, sent = _measured(links)
    found = {}
    for way in (LOCAL, FABRIC, NETWORK, f"{FABRIC} + {NETWORK}"):
        for models, factor, source in (
            (reduced.get(way), 1.5, "measured all-reduces"),
            (sent.get(way), 3.0, "measured messages"),
        ):
            if models and way not in found:
                alpha, rate = (median(each[index] for each in models) for index in (0, 1))
                found[way] = LinkStart(max(alpha, 1e-3) * _US, rate * _GB, factor, source)
        known = [link for name in links_of(way) if (link := system_links.get(name))]
        if way not in found and len(known) == len(links_of(way)):
            rate = min(float(link["gb_per_s"]) for link in known) * scale
            latencies = [link["latency_us"] for link in known if link.get("latency_us")]
            alpha = sum(latencies) * _US if latencies else _PLAIN_ALPHA_S
            found[way] = LinkStart(alpha, rate * _GB, 5.0, "the system file")
        found.setdefault(way, LinkStart(_PLAIN_ALPHA_S, _PLAIN_B_PER_S, 100.0, ""))
    return found


def undilated(starts: Mapping[str, LinkStart], scale: float, dilation: float) -> dict[str, LinkStart]:
    """What is known of emulated links in the time of replayed workloads, whose results are those of the real system."""
    return {
        way: replace(known, alpha_s=known.alpha_s / dilation, bytes_per_s=known.bytes_per_s / scale)
        if known.known
        else known
        for way, known in starts.items()
    }


_Models = dict[str, list[tuple[float, float]]]


def _measured(links: Iterable[Mapping[str, Any]]) -> tuple[_Models, _Models]:
    """(alpha_us, gb_per_s) by kind of way: of all-reduces over compositions, and of messages."""
    reduced: _Models = {}
    sent: _Models = {}
    for each in links:
        document = each["document"]
        kinds = {kind for row in document["kinds"] for kind in row if kind}
        model = document.get("model") or {}
        crossed = {link for kind in kinds for link in links_of(kind)}
        way = " + ".join(link for link in (FABRIC, NETWORK) if link in crossed) or LOCAL
        if kinds and (fit := model.get("allreduce")) and _sound(fit):
            reduced.setdefault(way, []).append((fit["alpha_us"], fit["gb_per_s"]))
        for kind, fit in (model.get("messages") or {}).items():
            if _sound(fit):
                sent.setdefault(kind, []).append((fit["alpha_us"], fit["gb_per_s"]))
    return reduced, sent


def _sound(fit: Mapping[str, Any]) -> bool:
    return math.isfinite(fit["gb_per_s"]) and fit["gb_per_s"] > 0 and fit["alpha_us"] > 0
