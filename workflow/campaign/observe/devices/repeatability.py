"""One model, trained by the built-in trainer for some seconds in a process of its own. Needs torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from campaign.documents.fields import Precision
from campaign.observe.devices.bench import Bench, middle
from campaign.observe.devices.document import StepResult
from campaign.workloads.steady_warmup import has_trend
from campaign.workloads.trainer import precision
from campaign.workloads.trainer.rank_interface import RankResult, TrainSpec
from campaign.workloads.trainer.training_session import TrainingSession

_MODEL, _MODEL_ON_CPU = ("bert-base", 16), ("bert-nano", 4)
_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
_ON_CPU: tuple[Precision, ...] = ("fp32",)
_FIRST_STEPS, _MOST_STEPS = 3, 5000


def measure(bench: Bench) -> StepResult:
    """Samples per second (of a core's processor time, on a CPU without a pace), and whether steps became slower or faster."""
    pace, wanted = bench.own.pace, _ON_CPU if bench.on_cpu else _PRECISIONS
    name = next(
        each for each in wanted if precision.unsupported_reason(each, bench.device, allow_emulation=False) is None
    )
    found = _trained(bench, name, _FIRST_STEPS)
    if found.status == "ok":
        steps = round(bench.spec.training_s / median(found.step_times_s))
        found = _trained(bench, name, min(max(steps, 2 * _FIRST_STEPS), _MOST_STEPS))
    if found.status != "ok":
        return StepResult(
            step="repeatability", faults=(f"training is {found.status}: {found.reason} {found.evidence}",)
        )
    times_s, half = found.step_times_s, len(found.step_times_s) // 2
    seconds = (found.process_time_s if bench.on_cpu and not pace else found.window_s) or 0.0
    trend_pct = 100 * (median(times_s[-half:]) / median(times_s[:half]) - 1)
    late_pct = 100 * sum(found.pace_lost_s or ()) / (found.window_s or 1.0)
    facts = {"precision": name, "steps": len(times_s), "late_pct": round(late_pct, 2)}
    return StepResult(
        step="repeatability",
        values={"samples_per_s": found.samples_per_step * len(times_s) / seconds},
        spread_pct={"samples_per_s": middle(times_s)[1] / len(times_s) ** 0.5},
        facts={**facts, "trend_pct": round(trend_pct, 3), "has_trend": has_trend(times_s)},
    )


def _trained(bench: Bench, name: Precision, steps: int) -> RankResult:
    model, batch = _MODEL_ON_CPU if bench.on_cpu else _MODEL
    spec = TrainSpec(
        model=model,
        batch=batch,
        precision=name,
        warmup_steps=2 if bench.on_cpu else 10,
        measured_steps=steps,
        device=bench.own.kind,
        pace_gflops=(bench.own.pace[name],) if bench.own.pace else (),
    )
    session = TrainingSession(spec, replace(bench.place, rank=0, world_size=1, spec=Path(), local_ranks=1), 0.0)
    try:
        return session.run()
    finally:
        session.close()
