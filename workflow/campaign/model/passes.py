"""The forward and backward passes of a step, for each way in which ranks share its work. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from campaign.model.collectives import Collectives
from campaign.model.description import ELEMENT_BYTES, Division, NetworkLayer, StepCase, WorkSharing
from campaign.model.parameters import Draws, Floats
from campaign.model.streams import COLLECTIVES, COMPUTE, OTHER_COLLECTIVES, Program, run

Layers = Sequence[NetworkLayer]


class Passes(NamedTuple):
    """Of all micro-steps of a step: seconds from its first to its last operation, those that compute takes of them, and those that
    collectives run."""

    end_s: Floats
    compute_s: Floats
    collectives_s: Floats


def passes(case: StepCase, draws: Draws, unit: Floats, reduce: Collectives | None) -> Passes:
    """unit: seconds of a unit of the layers' shares, in a micro-step. reduce: collectives of gradients; None: of one rank."""
    forward, backward = (
        unit * sum(getattr(layer, name) for layer in case.network.layers) for name in ("forward", "backward")
    )
    micro_steps, parallel = case.sharing.accumulation, case.sharing.parallel
    if case.sharing.recompute:
        # Layers inside of units run forward again.
        backward = backward + unit * sum(layer.forward for layer in case.network.layers if layer.unit)
    if reduce is None:
        whole = micro_steps * (forward + backward)
        return Passes(whole, whole, np.zeros(len(draws)))
    if parallel == "dp":
        return _one_process(case, draws, forward, backward, reduce)
    if parallel == "fsdp":
        last = run(_sharded(case, unit, reduce, scatters=True), draws.of("slowdown"))
        if micro_steps == 1:
            return Passes(*last)
        reduce.times = micro_steps - 1
        other = run(_sharded(case, unit, reduce, scatters=False), draws.of("slowdown"))
        reduce.times = 1
        return Passes(*(one + (micro_steps - 1) * each for one, each in zip(last, other, strict=True)))
    program = Program()
    begun = program.add(COMPUTE, (micro_steps - 1) * (forward + backward) + forward)
    wait = draws.of("cycle") if parallel == "horovod" else np.zeros(len(draws))
    reduced_backward(program, case.network.layers, case, unit, reduce, begun, wait)
    return Passes(*run(program, draws.of("slowdown")))


def buckets(layers: Layers, sharing: WorkSharing, gradient_bytes: float) -> list[tuple[float, float]]:
    """(share of the backward pass after which its gradients are ready, bytes) of each bucket.

    As DistributedDataParallel and Horovod make them: tensors in the order in which their gradients are ready, until a bucket has
    its size.
    """
    total = sum(backward_share(layer, sharing) for layer in layers)
    if not sharing.overlap:
        return [(1.0, elements(layers) * gradient_bytes)]
    found: list[tuple[float, float]] = []
    size, cap, done = 0.0, sharing.first_bucket_bytes, 0.0
    for layer in reversed(layers):
        own, passed = backward_share(layer, sharing), 0
        for tensor in reversed(layer.tensors):
            size, passed = size + tensor * gradient_bytes, passed + tensor
            if size >= cap:
                part = passed / sum(layer.tensors) if layer.gradual else 1.0
                found.append(((done + part * own) / total if total else 1.0, size))
                size, cap = 0.0, sharing.bucket_bytes
        done += own
    return [*found, (1.0, size)] if size else found


def elements(layers: Layers) -> int:
    return sum(sum(layer.tensors) for layer in layers)


def backward_share(layer: NetworkLayer, sharing: WorkSharing) -> float:
    return layer.backward + (layer.forward if sharing.recompute and layer.unit else 0.0)


def reduced_backward(
    program: Program,
    layers: Layers,
    case: StepCase,
    unit: Floats,
    reduce: Collectives,
    begun: int,
    wait: Floats,
    tensor_s: Floats | None = None,
) -> None:
    """Append a backward pass whose gradients are reduced bucket by bucket, behind the operation `begun`.

    wait: seconds before each collective begins; tensor_s: of collectives along tensors that the whole pass waits for, one after the
    other beside its layers.
    """
    sharing = case.sharing
    parts = sharing.division.tensor if sharing.division else 1
    backward = unit * sum(backward_share(layer, sharing) for layer in layers)
    last, done = begun, 0.0
    cut = buckets(layers, sharing, ELEMENT_BYTES[case.precision].gradient / parts)
    stream = COLLECTIVES if tensor_s is None else OTHER_COLLECTIVES
    for ready, size in [*cut, (1.0, 0.0)]:
        if ready > done:
            last = program.add(COMPUTE, backward * (ready - done), last)
            if tensor_s is not None:
                last = program.add(COLLECTIVES, tensor_s * (ready - done), last)
            done = ready
        if size:
            program.add(stream, reduce.all_reduce(size) + wait, last)


def _one_process(case: StepCase, draws: Draws, forward: Floats, backward: Floats, reduce: Collectives) -> Passes:
    """DataParallel: the root sends weights before the forward pass and gets all gradients after the backward pass, in every
    micro-step; Python of one replica after the other starts the forward passes."""
    reduce.times = micro_steps = case.sharing.accumulation
    size = float(elements(case.network.layers) * ELEMENT_BYTES[case.precision].gradient)
    moved = reduce.pass_along(size) + reduce.pass_along(size)
    reduce.times = 1
    compute = np.maximum(forward, reduce.ranks * draws.of("python")) + backward
    return Passes(micro_steps * (compute + moved), micro_steps * compute, micro_steps * moved)


def _sharded(case: StepCase, unit: Floats, gather: Collectives, *, scatters: bool) -> Program:
    """FSDP2: a unit is gathered while the one before it computes, in both passes, and its gradients are scattered while the next
    one does; layers that are no unit are one together, which is gathered once. gloo: nothing is hidden."""
    sharing, waits = case.sharing, case.topology.algorithm == "gloo"
    parts = sharing.division.tensor if sharing.division else 1
    size = ELEMENT_BYTES[case.precision].gradient / parts
    weight = size if sharing.gathered_bytes is None else sharing.gathered_bytes / parts
    program, layers = Program(), case.network.layers
    rest = [layer for layer in layers if not layer.unit]

    def gathered(what: Layers, *after: int) -> int:
        return program.add(COLLECTIVES, gather.gather(elements(what) * weight), *after)

    def scattered(what: Layers, *after: int) -> int:
        reduce = gather.all_reduce if waits else gather.gather
        return program.add(COLLECTIVES, reduce(elements(what) * size), *after)

    root = [gathered(rest)] if elements(rest) else []
    last: list[int] = []
    for backward in (False, True):
        runs = list(_runs(list(reversed(layers)) if backward else list(layers)))
        units = [each for each in runs if each[0].unit]
        coming = [gathered(units[0], *last)] if units else []
        behind = 1
        for each in runs:
            share = sum(backward_share(layer, sharing) if backward else layer.forward for layer in each)
            needs = root
            if each[0].unit:
                needs = [coming.pop()]
                if behind < len(units) and not waits:
                    coming = [gathered(units[behind], *last)]
            last = [program.add(COMPUTE, unit * share, *needs, *(last if waits else ()))]
            if each[0].unit and backward and scatters:
                done = scattered(each, *last)
                last = [done] if waits else last
            if each[0].unit and behind < len(units) and waits:
                coming = [gathered(units[behind], *last)]
            behind += each[0].unit
    if scatters and root:
        scattered(rest, *last)
    return program


def _runs(order: Layers) -> Iterator[list[NetworkLayer]]:
    """Units one by one, and what is between them."""
    between: list[NetworkLayer] = []
    for layer in order:
        if layer.unit:
            if between:
                yield between
            yield [layer]
            between = []
        else:
            between.append(layer)
    if between:
        yield between


def stages(layers: Layers, count: int) -> list[list[NetworkLayer]]:
    """Layers of each pipeline stage: units are divided evenly, earlier stages have one more; what stands before and after them is
    on the first and the last stage. Without units, all layers are divided."""
    places = [place for place, layer in enumerate(layers) if layer.unit] or list(range(len(layers)))
    least, more = divmod(len(places), count)
    ends = np.cumsum([least + (stage < more) for stage in range(count)])
    cuts = [0, *(places[end] for end in ends[:-1]), len(layers)]
    return [list(layers[one:other]) for one, other in pairwise(cuts)]


def divided_passes(
    case: StepCase, draws: Draws, unit: Floats, reduce: Collectives | None, division: Division
) -> tuple[Passes, list[Collectives]]:
    """Of a model that is divided over ranks, and the collectives beside `reduce`. unit: of a microbatch of a whole replica, on one
    device."""
    unit = unit / division.tensor
    along = Collectives.of(case.topology, division.tensor_groups, draws) if division.tensor > 1 else None
    tensor_s = along.all_reduces(division.tensor_bytes, division.tensor_calls) if along else np.zeros(len(draws))
    slowdown, micro = draws.of("slowdown"), division.microbatches
    if reduce and along and case.sharing.parallel == "fsdp":  # no pipeline: it would gather for every microbatch
        end, compute, collectives = run(_sharded(case, unit, reduce, scatters=True), slowdown)
        return Passes(end + tensor_s, compute, collectives + tensor_s), [along]
    parts = stages(case.network.layers, division.pipeline)
    total = case.network.total_share - case.network.optimizer
    between = Collectives.of(case.topology, division.pipeline_groups, draws) if division.pipeline > 1 else None
    message = between.message(division.boundary_bytes) if between else np.zeros(len(draws))
    forward, backward, tails, computing = [], [], [], []
    sent = [0.0]
    for layers in parts:
        f = unit * sum(layer.forward for layer in layers)
        b = unit * sum(backward_share(layer, case.sharing) for layer in layers)
        share = sum(layer.forward + layer.backward for layer in layers) / total
        waits = tensor_s * division.pipeline * share / micro
        forward.append(f + waits / 3)
        backward.append(b + waits * 2 / 3)
        computing.append(micro * (f + b))
        before = reduce.sent if reduce else 0.0
        tails.append(_tail(case, layers, unit, reduce, slowdown, waits * 2 / 3 if along else None, b))
        sent.append((reduce.sent if reduce else 0.0) - before)
    if reduce:
        # The groups of all stages were counted for each of them.
        reduce.carried = {kind: size / division.pipeline for kind, size in reduce.carried.items()}
        reduce.sent = max(sent)
    ends = pipeline_ends(forward, backward, message, micro, division.schedule)
    tied = _tied(case, draws, division)
    finished = np.max([end + tail for end, tail in zip(ends, tails, strict=True)], axis=0)
    if tied:
        finished = finished + tied.all_reduce(division.tied_bytes)
    if between:
        # Each microbatch goes forward, and its gradient back.
        between.carried = {kind: 2 * micro * size for kind, size in between.carried.items()}
        between.sent = min(2, division.pipeline - 1) * micro * division.boundary_bytes
    collectives = np.minimum(finished, tensor_s + np.max(tails, axis=0))
    return Passes(finished, np.max(computing, axis=0), collectives), [each for each in (along, between, tied) if each]


def _tied(case: StepCase, draws: Draws, division: Division) -> Collectives | None:
    """The collectives of the first and the last stage, where they share a weight."""
    ends = tuple((stages_[0], stages_[-1]) for stages_ in division.pipeline_groups)
    return Collectives.of(case.topology, ends, draws) if division.tied_bytes and division.pipeline > 1 else None


def _tail(
    case: StepCase,
    layers: Layers,
    unit: Floats,
    reduce: Collectives | None,
    slowdown: Floats,
    tensor_s: Floats | None,
    alone: Floats,
) -> Floats:
    """Seconds by which reducing gradients outlasts the last backward pass of a stage."""
    if reduce is None:
        return np.zeros(len(slowdown))
    program, nothing = Program(), np.zeros(len(slowdown))
    reduced_backward(program, layers, case, unit, reduce, program.add(COMPUTE, nothing), nothing, tensor_s)
    return run(program, slowdown).end_s - alone - (0.0 if tensor_s is None else tensor_s)


def pipeline_ends(
    forward: Sequence[Floats], backward: Sequence[Floats], message: Floats, microbatches: int, schedule: str
) -> list[Floats]:
    """When each stage ends its last backward pass. forward, backward: seconds of a microbatch, by stage; message: from one stage
    to the next; schedule: of torch.distributed.pipelining, see the option `pipeline_schedule`."""
    count = len(forward)
    rows: list[list[tuple[int, bool]]] = []
    for stage in range(count):
        ahead = microbatches if schedule == "gpipe" else min(microbatches, count - stage)
        rows.append([(part, False) for part in range(ahead)])
        for part in range(microbatches):
            rows[stage].append((part, True))
            rows[stage] += [(ahead + part, False)] if ahead + part < microbatches else []
    ends: dict[tuple[int, int, bool], Floats] = {}
    free = [np.zeros(())] * count
    while any(rows):
        for stage, row in enumerate(rows):
            while row:
                part, back = row[0]
                before = stage + 1 if back else stage - 1
                received = 0 <= before < count
                if received and (before, part, back) not in ends:
                    break
                begun = np.maximum(free[stage], ends[before, part, back] + message if received else 0.0)
                ends[stage, part, back] = free[stage] = begun + (backward if back else forward)[stage]
                row.pop(0)
    return free
