"""Measure the links of a composition: one process on every device, whose results become one document (links/1)."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from campaign.config.campaign_file import LinkMeasurement
from campaign.errors import RecordError
from campaign.fabrics.hardware import Composition
from campaign.launch.protocol import Launcher, Limits
from campaign.launch.rank_devices import UsedDevices
from campaign.observe.links import external_tools
from campaign.observe.links.document import LinksDocument, MeasuredDevice, measured
from campaign.observe.links.spec import LinkSpec, RankLinks, read_links
from campaign.workloads.protocol import Ended, Step

TORCH = "torch"
_TIME_OUT_S = 30.0  # beyond the budget: no rank waits longer for its turn
_START_S = 120.0  # loading torch from a busy shared file system


def measure_links(
    launcher: Launcher,
    composition: Composition,
    runs_on: Literal["cuda", "cpu"],
    settings: LinkMeasurement,
    directory: Path,
    marker: str,
    log: Path,
) -> dict[str, Any]:
    """Measure the links between all devices of the composition; gives a document as `LinksDocument` describes it.

    What fails in the measurement is a problem in the document; LaunchError (nothing could be started) passes. `directory` is the
    stage's own, and empty afterwards; output is appended to `log`.
    """
    started_s = time.monotonic()
    devices = described(composition)
    spec = LinkSpec(
        hosts=tuple(device.host for device in devices) or ("none",),
        **settings.model_dump(include={"sizes_bytes", "repeats", "warmup", "budget_s"}),
        device=runs_on,
        time_out_s=settings.budget_s + _TIME_OUT_S,
    )
    ranks: tuple[RankLinks | None, ...] = (None,) * len(devices)
    problems: list[str] = []
    if devices and TORCH in settings.tools:
        ranks, problems = _measured_by_ranks(spec, devices, launcher, directory / TORCH, f"{marker}.{TORCH}", log)
    programs, absent = external_tools.measure(launcher, composition, settings, directory, marker, log)
    parts = measured(spec, devices, ranks)
    document = LinksDocument(
        **{**parts, "tools": (*parts["tools"], *programs)},
        problems=(*problems, *absent) if devices else ("the composition has no devices",),
        foreign=programs,
        took_s=round(time.monotonic() - started_s, 3),
    )
    return document.model_dump(mode="json")


def described(composition: Composition) -> list[MeasuredDevice]:
    """Devices in the order of their ranks."""
    return [
        MeasuredDevice(
            name=f"{host}.{device.kind}{index}",
            host=host,
            index=index,
            attach="local" if device.local else "fabric",
            fabric_id=device.fabric_id,
            model=device.model,
        )
        for host, devices in UsedDevices(composition).by_host.items()
        for index, device in enumerate(devices)
    ]


def _measured_by_ranks(
    spec: LinkSpec, devices: Sequence[MeasuredDevice], launcher: Launcher, out: Path, marker: str, log: Path
) -> tuple[tuple[RankLinks | None, ...], list[str]]:
    """Results by rank, and what went wrong."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        path = out / "spec.json"
        path.write_text(spec.model_dump_json())
        step = Step(
            (sys.executable, "-m", "campaign.observe.links.rank"),
            {"CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(out)},
            Counter(spec.hosts),
            preload="campaign.workloads.trainer",
        )
        limit_s = 2 * spec.budget_s + _TIME_OUT_S + _START_S
        ended = launcher.run(step, marker, log, out, Limits(limit_s))
        try:
            ranks = read_links(out, len(devices))
        except RecordError as error:
            return (None,) * len(devices), [f"links: {error}"]
        return ranks, _problems(ended, ranks, devices, limit_s)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _problems(
    ended: Ended, ranks: Sequence[RankLinks | None], devices: Sequence[MeasuredDevice], limit_s: float
) -> list[str]:
    if ended.timed_out:
        return [f"the measurement was stopped after {limit_s:g} s, and its results were discarded"]
    said = []
    for number, (rank, device) in enumerate(zip(ranks, devices, strict=True)):
        code = ended.codes[number] if number < len(ended.codes) else None
        if rank is None:
            said.append(f"rank {number} ({device.name}) left no result: {_end(code)}")
        elif rank.error:
            said.append(f"rank {number} ({device.name}) failed: {rank.error}")
    return said


def _end(code: int | None) -> str:
    if code is None:
        return "it was killed with the others"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}, see the log"
