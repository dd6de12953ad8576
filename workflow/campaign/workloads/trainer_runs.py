"""Runs of the trainer: reasons why they are unsupported, the step that starts the ranks, and the outcome.

The results of the ranks also show on which devices their work was done.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.errors import format_install_command
from campaign.spec.cell import Cell, Scalar
from campaign.spec.hardware import normalize_identity
from campaign.spec.record import Failure
from campaign.workloads.failures import PACE_NOT_HELD
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, Step, StepEnd
from campaign.workloads.trainer.rank_interface import RankResult, read_results, unsupported_mixed_reason

_MAX_PACE_LOSS_PCT = 2.0
_CONSEQUENTIAL_STATUSES = {"comm_error", "comm_timeout"}
_METRICS_BY_MAXIMUM = (
    "parameters",
    "gradient_bytes",
    "allreduce_bytes_per_step",
    "communication_bytes_per_step",
    "exposed_communication_s",
    "allreduce_s",
    "skipped_steps",
    "host_memory_peak_bytes",
    "device_memory_allocated_peak_bytes",
    "device_memory_reserved_peak_bytes",
    "process_time_s",
)


def missing_torch_requirement(kinds: Collection[AcceleratorKind] = ()) -> str | None:
    """Return a message on what is missing for training on these kinds of devices, with the remedy, or None.

    The check does not load PyTorch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        cpu = format_install_command("train", "--index-url", "https://download.pytorch.org/whl/cpu")
        return (
            f"PyTorch is not installed; run: {cpu} (for GPUs without --index-url, which also installs 20 CUDA packages)"
        )
    build = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    for kind in kinds:
        accelerator = ACCELERATORS[kind]
        if accelerator.torch_build and not build.get(accelerator.torch_build):
            return (
                f"PyTorch {build['__version__']} is not built for {accelerator.title}s (`runs_on: {kind}`); install the build for "
                "the driver of this machine (see pytorch.org), or load the one of your site"
            )
    return None


def unsupported_strategy_reason(cell: Cell, options: Mapping[str, Scalar]) -> str | None:
    """Return the reason why a cell's devices cannot share the work in the way its options require, or None."""
    configuration, parallel = cell.configuration, options["parallel"]
    if parallel == "dp" and configuration.hosts > 1:
        hosts = configuration.hosts
        return f"option 'parallel: dp' (DataParallel) supports one host only, but this configuration has {hosts} hosts"
    if cell.batch % (steps := int(options["accumulation"])):
        return f"option 'accumulation': a batch of {cell.batch} per device cannot be divided into {steps} micro-steps"
    if reason := unsupported_mixed_reason(options, cell.precision, configuration.ranks):
        return reason
    if options["measure_communication"] and parallel != "ddp" and configuration.ranks > 1:
        return f"option 'measure_communication' is supported with 'parallel: ddp' only, not with 'parallel: {parallel}'"
    if parallel == "fsdp" and not options["overlap"]:
        return (
            "option 'overlap: false' is not supported with 'parallel: fsdp', which reduces the gradients layer by layer"
        )
    return None


def build_ranks_step(run: Run, specification: Mapping[str, Any], replicas: int = 1) -> Step:
    """Write the specification of the ranks, and build the step that starts them: one process per device or device group.

    Args:
        run: the run.
        specification: further keys of the TrainSpec with their values.
        replicas: number of devices per process.
    """
    settings = run.cell.settings
    document = {
        "batch": run.cell.batch,
        "precision": run.cell.precision,
        "warmup_steps": settings.warmup_steps,
        "measured_steps": settings.measured_steps,
        **specification,
    }
    path = run.directory / "spec.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    environment = {"CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(run.directory)}
    argv = (sys.executable, "-m", "campaign.workloads.trainer.rank")
    if replicas > 1:
        environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return Step(argv, environment, run.ranks_by_host, per_rank=replicas == 1, preload="campaign.workloads.trainer")


def judge_ranks(run: Run, step_end: StepEnd, log: Log, processes: int) -> Outcome:
    """Determine the outcome of a training run from the result files that its processes wrote."""
    results = read_results(run.directory, processes)
    complete_results = [result for result in results if result is not None]
    failed_results = [result for result in complete_results if result.status != "ok"]
    hit_limit = step_end.timed_out or step_end.memory_limit_hit
    if hit_limit or (len(complete_results) < len(results) and not failed_results):
        no_result = Failure(reason="a rank wrote no result", evidence=f"exit codes {step_end.codes}")
        return step_end.failure_outcome(log) or Outcome("incomplete", no_result)
    if len(complete_results) < len(results) or any(result.status != "nan" for result in failed_results):
        # A rank with its own error is the cause. Errors of ranks that lost a peer are its consequences.
        cause = next(
            (result for result in failed_results if result.status not in _CONSEQUENTIAL_STATUSES), failed_results[0]
        )
        if cause.status in _CONSEQUENTIAL_STATUSES and (outcome := step_end.failure_outcome(log)):
            return outcome
        return Outcome(cause.status, _build_failure(cause), ran_on=list_devices_used(complete_results))
    if failure := find_wrong_devices(run, complete_results):
        return Outcome("invalid", failure, ran_on=list_devices_used(complete_results))
    return reject_lost_pace(_build_measured_outcome(run, complete_results, step_end, failed_results))


def _build_failure(result: RankResult) -> Failure:
    """Build the failure of a run from the result of a rank that failed."""
    return Failure(reason=result.reason, evidence=result.evidence, rank=result.rank)


def _build_measured_outcome(
    run: Run, results: Sequence[RankResult], step_end: StepEnd, not_a_number: Sequence[RankResult]
) -> Outcome:
    """Build the outcome of a run in which all ranks were measured."""
    windows = tuple(result.window_s or 0.0 for result in results)
    slowest = max(windows)
    steps = len(results[0].step_times_s)
    hang_flags = {"exit_hang"} if step_end.exit_hang else set()
    phases = {
        phase: max(result.phases_s.get(phase, 0.0) for result in results)
        for phase in dict.fromkeys(phase for result in results for phase in result.phases_s)
    }
    if starts := [result.window_started for result in results if result.window_started is not None]:
        # This is the time from the launch of the step to the first measured step of the last rank.
        phases["first_step"] = max(starts) - step_end.started
    return Outcome(
        status="nan" if not_a_number else "ok",
        failure=_build_failure(not_a_number[0]) if not_a_number else None,
        # All ranks finish a step together, so the slowest window is that of the job, and rates of ranks must not be added up.
        throughput_per_s=run.cell.batch_global * steps / slowest if slowest > 0 else None,
        step_times_s=tuple(result.step_times_s for result in results),
        warmup_steps=max(result.warmup_steps for result in results),
        window_s=windows,
        metrics={
            **_collect_metrics(results),
            **compute_pace_loss(results, slowest),
            **compute_efficiency(run, results, slowest),
        },
        phases_s=phases,
        numa=tuple(result.numa for result in results if result.numa),
        steady=_find_steady_window(results),
        ran_on=list_devices_used(results),
        in_force=_merge_settings_in_force(results),
        flags=tuple(sorted(hang_flags.union(*(r.flags for r in results)))),
    )


def _merge_settings_in_force(results: Sequence[RankResult]) -> dict[str, str]:
    """Merge the settings that were in force on the ranks. Values that differ between ranks are joined by ' and '."""
    names = dict.fromkeys(name for result in results for name in result.in_force)
    return {name: " and ".join(sorted({r.in_force[name] for r in results if name in r.in_force})) for name in names}


def compute_pace_loss(results: Sequence[RankResult], slowest_s: float) -> dict[str, float]:
    """Compute the share of the window lost because cores could not keep the emulated devices' pace, as a metric.

    Ranks wait for each other in every step, so in each step the run loses the maximum over its ranks. The result is empty if no
    device is emulated.

    Args:
        results: results by rank.
        slowest_s: longest window of all ranks in seconds.
    """
    lost_s = [result.pace_lost_s for result in results if result.pace_lost_s is not None]
    if not lost_s or slowest_s <= 0:
        return {}
    return {"pace_lost_pct": 100 * sum(map(max, zip(*lost_s, strict=True))) / slowest_s}


def reject_lost_pace(outcome: Outcome) -> Outcome:
    """Return the outcome, changed to `invalid` if the cores could not keep the pace of the emulated devices.

    The measured times are then those of overloaded cores, not of the devices.
    """
    lost_pct = outcome.metrics.get("pace_lost_pct", 0.0)
    if outcome.status != "ok" or lost_pct <= _MAX_PACE_LOSS_PCT:
        return outcome
    evidence = (
        f"{lost_pct:.1f} % of the window was lost, but at most {_MAX_PACE_LOSS_PCT:g} % is allowed; end other work on this "
        "machine, lower emulation.pace in the system file, or use fewer devices"
    )
    return replace(outcome, status="invalid", failure=Failure(reason=PACE_NOT_HELD, evidence=evidence))


def _find_steady_window(results: Sequence[RankResult]) -> tuple[float, float] | None:
    """Return the start and end (Unix seconds) of the period in which all ranks were in their measured windows.

    Returns None if a rank has no window, or if the windows do not overlap according to the clocks of their hosts.
    """
    windows = [(r.window_started, r.window_started + r.window_s) for r in results if r.window_started and r.window_s]
    if len(windows) < len(results):
        return None
    start, end = max(start for start, _ in windows), min(end for _, end in windows)
    return (start, end) if start < end else None


def _collect_metrics(results: Sequence[RankResult]) -> dict[str, float]:
    """Collect all metrics except for the rate. Losses are those of rank 0; other metrics are maxima over all ranks.

    Metrics that no rank reports are left out.
    """
    losses = {"loss_first": results[0].loss_first, "loss_last": results[0].loss_last}
    metrics = {name: float(value) for name, value in losses.items() if value is not None}
    for name in _METRICS_BY_MAXIMUM:
        if values := [value for result in results if (value := getattr(result, name)) is not None]:
            in_mib = name.endswith("_peak_bytes")
            metrics[name.replace("_bytes", "_mib") if in_mib else name] = max(values) / (2**20 if in_mib else 1)
    return metrics


def compute_efficiency(run: Run, results: Sequence[RankResult], slowest_s: float) -> dict[str, float]:
    """Compute how efficiently a training run used its devices, links and storage, as metrics by name.

    - `flops_per_step`: operations of all ranks per step, by the model.
    - `achieved_tflops`: achieved rate per device.
    - `mfu_pct`: achieved rate as a percentage of the device's peak in this precision (Chowdhery et al. 2022).
    - `flops_per_allreduce_byte`: operations of a rank per byte that it passes to all-reduces.
    - `input_wait_s`: time without input in the window, of the rank that waited longest.
    - `input_gb_per_s`: rate at which all ranks together read from storage, over the window.

    Metrics that cannot be computed are left out.

    Args:
        run: the run.
        results: results by rank.
        slowest_s: longest window of all ranks in seconds.
    """
    metrics: dict[str, float] = {}
    first, cell = results[0], run.cell
    if slowest_s > 0 and first.flops_per_step and first.samples_per_step:
        flops_per_step = first.flops_per_step / first.samples_per_step * cell.batch_global
        achieved_tflops = flops_per_step * len(first.step_times_s) / slowest_s / cell.configuration.ranks / 1e12
        metrics |= {"flops_per_step": flops_per_step, "achieved_tflops": achieved_tflops}
        if run.peak_tflops:
            metrics["mfu_pct"] = 100 * achieved_tflops / run.peak_tflops
        if first.allreduce_bytes_per_step:
            metrics["flops_per_allreduce_byte"] = first.flops_per_step / first.allreduce_bytes_per_step
    waits = [result.input_read_s for result in results if result.input_read_s is not None]
    if slowest_s > 0 and waits:
        step_bytes = sum(result.input_bytes_per_step or 0 for result in results)
        rate = step_bytes * len(first.step_times_s) / slowest_s / 1e9
        metrics |= {"input_wait_s": max(waits), "input_gb_per_s": rate}
    return metrics


_UUID = re.compile(r"[0-9a-f]{32}")


def list_devices_used(results: Sequence[RankResult]) -> tuple[str, ...]:
    """List the devices that the ranks report to have worked on, each by torch's device name and its UUID.

    Ranks without a report are left out. If a process uses several devices, the UUIDs of the others follow its first device.
    """
    devices_by_rank = [
        (" ".join((*result.work_on, result.device_uuid or "")).strip(), *result.replica_uuids)
        for result in results
        if result.work_on
    ]
    return tuple(device for devices in devices_by_rank for device in devices)


def find_wrong_devices(run: Run, results: Sequence[RankResult]) -> Failure | None:
    """Return a failure if ranks used devices that do not belong to the run, or if several ranks used the same device.

    Returns None if nothing suggests that. Parts of devices and remote devices are not checked, because their reported UUIDs prove
    nothing. The names in a composition were found on the host before the run.
    """
    if any(device.launch for device in run.devices):
        return None
    uuids = {result.rank: normalize_identity(result.device_uuid) for result in results if result.device_uuid}
    if shared_uuids := [uuid for uuid, count in Counter(uuids.values()).items() if count > 1]:
        ranks = ", ".join(str(rank) for rank, uuid in uuids.items() if uuid == shared_uuids[0])
        return Failure(
            reason="several ranks used one device", evidence=f"ranks {ranks} report the device {shared_uuids[0]}"
        )
    names = [normalize_identity(device.host_id or "") for device in run.devices]
    if run.runs_on != "cuda" or not all(map(_UUID.fullmatch, names)):
        return None
    for rank, uuid in uuids.items():
        if uuid not in names:
            evidence = f"rank {rank} reports the device {uuid}, but the devices of the run are {', '.join(names)}"
            return Failure(reason="a rank used a device that does not belong to the run", evidence=evidence, rank=rank)
    return None
