"""A trace from an MLCommons Chakra execution trace of one rank of a data-parallel step.

The computation until the gradients of an all-reduce are ready is that of a layer, and the all-reduce its tensor. What waits for an
all-reduce is the optimizer. Collectives and computation that overlap in the file overlap in the replay.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from campaign.documents.fields import Precision
from campaign.errors import ConfigError
from campaign.workloads.traces.chakra_file import COLLECTIVES, ChakraNode, read_nodes
from campaign.workloads.traces.trace_file import Trace, TracedLayer, compute_row, make_trace

_MOST_BYTES = 2**40
_MOST_US = 24 * 3600 * 10**6
_MAPPED = ("COMP_NODE", "ALL_REDUCE", "METADATA_NODE")
# What may stand beside the all-reduces of a data-parallel step; it is left out of the replay and reported.
_LEFT_OUT = ("BROADCAST", "BARRIER", "MEM_LOAD_NODE", "MEM_STORE_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE")
_NAME_LENGTH = 60
_EXAMPLES = 3
# Less than any tensor: each all-reduce of the file is one of the replay.
_OWN_BUCKETS = {"bucket_mib": 0.001}


class _Reduction(NamedTuple):
    """An all-reduce. ready_us: computation before its gradients are there."""

    ready_us: int
    name: str
    size_bytes: int


class ChakraTrace(NamedTuple):
    """A trace that was read. left_out: what of the file is not in the trace, in words."""

    workload: Trace
    left_out: tuple[str, ...]


def chakra_trace(path: Path, name: str, device: str, precision: Precision, batch: int) -> ChakraTrace:
    """The trace `name` of a file of a run on such devices. ConfigError: no replay can be made of it."""
    nodes = _in_order(path, read_nodes(path))
    kinds = {node.id: _kind(path, node) for node in nodes}
    _refuse_others(path, nodes, kinds)
    counted, left_out = _computation(path, [node for node in nodes if node.type == "COMP_NODE"])
    reductions, before_us, optimizer_us = _reductions(path, nodes, kinds, counted)
    total_us = before_us + optimizer_us
    if not total_us:
        raise ConfigError(
            f"{path}: no node of computation has a duration_micros; a replay needs a trace of a measured run"
        )
    beside = [node for node in nodes if kinds[node.id] in _LEFT_OUT]
    row = compute_row(device, precision, batch, total_us / 1e6, f"Chakra execution trace {path.name}")
    element_bytes = 2 if precision == "fp16-o2" else 4
    workload = make_trace(
        name,
        f"Chakra execution trace {path.name}: layers by their all-reduces, shares in ms",
        _layers(reductions, before_us, element_bytes),
        optimizer_us / 1e3,
        [row],
        options=_OWN_BUCKETS,
    )
    return ChakraTrace(workload, (*left_out, *_counted_words(beside, kinds)))


def _in_order(path: Path, nodes: Sequence[ChakraNode]) -> list[ChakraNode]:
    """The nodes as one device works on them: each after those that it depends on, else by start and place in the file."""
    place = {node.id: (node.start_us, index) for index, node in enumerate(nodes)}
    by_id = {node.id: node for node in nodes}
    after: dict[int, list[int]] = defaultdict(list)
    missing = {node.id: len(set(node.depends_on)) for node in nodes}
    for node in nodes:
        for dependency in set(node.depends_on):
            if dependency not in by_id:
                raise ConfigError(
                    f"{path}: {_of(node)} depends on node {dependency}, which is not in the file; it is not whole"
                )
            after[dependency].append(node.id)
    ready = [(place[id], id) for id, count in missing.items() if not count]
    heapq.heapify(ready)
    done = []
    while ready:
        _, id = heapq.heappop(ready)
        done.append(by_id[id])
        for follower in after[id]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (place[follower], follower))
    if len(done) < len(nodes):
        stuck = next(node for node in nodes if missing[node.id])
        raise ConfigError(
            f"{path}: {len(nodes) - len(done)} nodes depend on each other in a circle, such as {_of(stuck)}"
        )
    return done


def _kind(path: Path, node: ChakraNode) -> str:
    """The type of a node; of a collective, its operation."""
    if node.type != "COMM_COLL_NODE":
        return node.type
    number = node.values.get("comm_type")
    if not isinstance(number, int) or not 0 <= number < len(COLLECTIVES):
        raise ConfigError(f"{path}: {_of(node)} has comm_type {number!r}; allowed: 0 to {len(COLLECTIVES) - 1}")
    return COLLECTIVES[number]


def _refuse_others(path: Path, nodes: Iterable[ChakraNode], kinds: Mapping[int, str]) -> None:
    others = [node for node in nodes if kinds[node.id] not in (*_MAPPED, *_LEFT_OUT)]
    if others:
        raise ConfigError(
            f"{path}: a replay is a data-parallel step, whose gradients are all-reduced; the file also has "
            f"{'; '.join(_counted_words(others, kinds))}"
        )
    groups = Counter(str(node.values.get("pg_name", "")) for node in nodes if kinds[node.id] == "ALL_REDUCE")
    if not groups:
        raise ConfigError(
            f"{path}: has no all-reduce, so no gradient that a replay could reduce; trace a run on several devices"
        )
    if len(groups) > 1:
        words = ", ".join(f"{count} in '{group}'" for group, count in sorted(groups.items()))
        raise ConfigError(
            f"{path}: all-reduces of {len(groups)} process groups ({words}); a replay has one, of all ranks"
        )


def _computation(path: Path, nodes: Sequence[ChakraNode]) -> tuple[set[int], tuple[str, ...]]:
    """Nodes that take a device's time, and what is not counted: the host's part where the file has both."""
    of_device = [node for node in nodes if node.values.get("is_cpu_op") is False]
    timed = of_device or nodes
    for node in timed:
        if node.duration_us > _MOST_US:
            raise ConfigError(
                f"{path}: {_of(node)} takes {node.duration_us} us; a step of more than a day is taken for damage"
            )
        if not node.duration_us and node.values.get("num_ops"):
            raise ConfigError(
                f"{path}: {_of(node)} has num_ops and no duration_micros; a replay needs a trace of a measured run"
            )
    host = len(nodes) - len(timed)
    return {node.id for node in timed}, ((f"{host} operations of the CPU",) if host else ())


def _reductions(
    path: Path, nodes: Iterable[ChakraNode], kinds: Mapping[int, str], counted: set[int]
) -> tuple[list[_Reduction], int, int]:
    """All-reduces in the order in which their gradients are ready; us of computation that waits for none, and for one."""
    found: list[_Reduction] = []
    ready_us: dict[int, int] = {}
    behind: dict[int, str] = {}  # what waits for an all-reduce
    computed_behind: dict[int, str] = {}  # what waits for computation that does
    before_us = optimizer_us = 0
    for node in nodes:
        at_us = max((ready_us[dependency] for dependency in node.depends_on), default=0)
        waits = next((behind[each] for each in node.depends_on if each in behind), None)
        late = next((computed_behind[each] for each in node.depends_on if each in computed_behind), None)
        if node.id in counted and waits is None:
            at_us = before_us = before_us + node.duration_us
        elif node.id in counted:
            optimizer_us += node.duration_us
            late = waits if node.duration_us else late
        if kinds[node.id] == "ALL_REDUCE":
            if late is not None:
                raise ConfigError(
                    f"{path}: {_of(node)} waits for computation that waits for all-reduce '{late}'; the file has several steps, or "
                    "a model that is divided among devices. Trace a single data-parallel step"
                )
            found.append(_Reduction(at_us, node.name[:_NAME_LENGTH], _size(path, node)))
            waits = node.name[:_NAME_LENGTH]
        ready_us[node.id] = at_us
        if waits is not None:
            behind[node.id] = waits
        if late is not None:
            computed_behind[node.id] = late
    return sorted(found, key=lambda reduction: reduction.ready_us), before_us, optimizer_us


def _size(path: Path, node: ChakraNode) -> int:
    size = node.values.get("comm_size")
    if not isinstance(size, int) or not 0 < size <= _MOST_BYTES:
        raise ConfigError(f"{path}: {_of(node)} has comm_size {size!r}; allowed: 1 to {_MOST_BYTES} bytes")
    return size


def _layers(reductions: Sequence[_Reduction], before_us: int, element_bytes: int) -> list[TracedLayer]:
    """The layers as the forward pass has them. What comes before the first gradient counts as forward pass of the last one."""
    layers: list[TracedLayer] = []
    done_us = 0
    for reduction in reductions:
        took_ms, done_us = (reduction.ready_us - done_us) / 1e3, reduction.ready_us
        elements = -(-reduction.size_bytes // element_bytes)
        shares = (0.0, took_ms) if layers else (took_ms, 0.0)
        layers.append(TracedLayer(reduction.name, f"{shares}", (elements,), *shares))
    if before_us > done_us:
        layers.append(TracedLayer("after the last gradient", "", (), 0.0, (before_us - done_us) / 1e3))
    return layers[::-1]


def _counted_words(nodes: Iterable[ChakraNode], kinds: Mapping[int, str]) -> list[str]:
    """How many there are of each kind, with the names of some."""
    names: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        names[kinds[node.id]].append(node.name[:_NAME_LENGTH])
    return [
        f"{len(of_kind)} {kind} ({', '.join(of_kind[:_EXAMPLES])}{', ...' if len(of_kind) > _EXAMPLES else ''})"
        for kind, of_kind in names.items()
    ]


def _of(node: ChakraNode) -> str:
    return f"node {node.id} '{node.name[:_NAME_LENGTH]}'"
