"""What a training run made of its devices, links and storage: numbers that explain a rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.workloads.protocol import Run
from campaign.workloads.trainer.rank_result import RankResult


def efficiency(run: Run, results: Sequence[RankResult], slowest_s: float) -> dict[str, float]:
    """Metrics by name; what cannot be known is absent. slowest_s: the longest window of all ranks.

    flops_per_step: of all ranks, by the model (`campaign.workloads.trainer.flops`); achieved_tflops: of one device;
    mfu_pct: that, of its peak
    in this precision (Chowdhery et al. 2022); flops_per_allreduce_byte: a rank's work for each byte that it hands to all-reduces.
    input_wait_s: the window's time without input, of the rank that waited longest; input_gb_per_s: what all ranks together took
    from storage, over the window.
    """
    return {**_arithmetic(run, results[0], slowest_s), **_input(run, results, slowest_s)}


def _arithmetic(run: Run, first: RankResult, slowest_s: float) -> dict[str, float]:
    if not first.flops_per_step or not first.samples_per_step or slowest_s <= 0:
        return {}
    cell = run.cell
    per_step = first.flops_per_step / first.samples_per_step * cell.batch_global
    achieved = per_step * cell.settings.measured_steps / slowest_s / cell.configuration.ranks / 1e12
    found = {"flops_per_step": per_step, "achieved_tflops": achieved}
    if run.peak_tflops:
        found["mfu_pct"] = 100 * achieved / run.peak_tflops
    if first.allreduce_bytes_per_step:
        found["flops_per_allreduce_byte"] = first.flops_per_step / first.allreduce_bytes_per_step
    return found


def _input(run: Run, results: Sequence[RankResult], slowest_s: float) -> dict[str, float]:
    waits = [result.input_read_s for result in results if result.input_read_s is not None]
    if not waits or slowest_s <= 0:
        return {}
    step_bytes = sum(result.input_bytes_per_step or 0 for result in results)
    rate = step_bytes * run.cell.settings.measured_steps / slowest_s / 1e9
    return {"input_wait_s": max(waits), "input_gb_per_s": rate}
