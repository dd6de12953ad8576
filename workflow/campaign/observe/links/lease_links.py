"""Link measurements of one lease. One process per device measures them once per use; `links/<use>.<when>.json` stores them."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import RecordError
from campaign.common.files import load_json, make_directory, reject_damaged_document, write_once
from campaign.common.paths import Results
from campaign.observe.links.document import LinksDocument, MeasuredDevice, build_measurements
from campaign.observe.links.external_tools import LinkTestSetup, run_external_tools
from campaign.observe.links.slow_links import flag_slow_links
from campaign.observe.links.spec import LinkSpec, RankLinks, read_links
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.used_devices import UsedDevices
from campaign.spec.campaign_file import LinkMeasurement
from campaign.spec.hardware import Composition
from campaign.spec.record import RecordStore
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.protocol import Step, StepEnd

TORCH = "torch"
_OPERATION_TIMEOUT_S = 30.0
"""Time in seconds, beyond the time budget, for which a rank waits for its turn."""
_MAX_TRIES = 3
_START_TIMEOUT_S = 120.0
"""Time limit in seconds for loading torch, e.g. from a busy shared file system."""


def measure_links(setup: LinkTestSetup, runs_on: AcceleratorKind, settings: LinkMeasurement) -> dict[str, Any]:
    """Measure the links between all devices of a composition, and return a `LinksDocument` as a dict.

    Failures of the measurement are listed as problems in the document. Raises LaunchError if nothing could be started.
    Afterwards the directory of the setup is empty. Output of the processes is appended to the log of the setup.
    """
    started_s = time.monotonic()
    devices = describe_devices(setup.composition)
    spec = LinkSpec(
        hosts=tuple(device.host for device in devices) or ("none",),
        sizes_bytes=settings.get_message_sizes(runs_on),
        **settings.model_dump(include={"repeats", "warmup", "budget_s"}),
        device=runs_on,
        time_out_s=settings.budget_s + _OPERATION_TIMEOUT_S,
    )
    ranks: tuple[RankLinks | None, ...] = (None,) * len(devices)
    problems: list[str] = []
    if devices and TORCH in settings.tools:
        ranks, problems = _measure_with_ranks(spec, devices, setup)
    tool_readings, tool_problems = run_external_tools(setup, settings, max(spec.sizes_bytes))
    parts = build_measurements(spec, devices, ranks)
    document = LinksDocument(
        **{**parts, "tools": (*parts["tools"], *tool_readings)},
        problems=(*problems, *tool_problems) if devices else ("the composition has no devices",),
        foreign=tool_readings,
        took_s=round(time.monotonic() - started_s, 3),
    )
    return document.model_dump(mode="json")


def describe_devices(composition: Composition) -> list[MeasuredDevice]:
    """Describe the devices of a composition for a links document, in rank order."""
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


def _measure_with_ranks(
    spec: LinkSpec, devices: Sequence[MeasuredDevice], setup: LinkTestSetup, tries: int = _MAX_TRIES
) -> tuple[tuple[RankLinks | None, ...], list[str]]:
    """Measure links with one process (rank) per device. Return the result of each rank and the problems."""
    out = setup.directory / TORCH
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        path = out / "spec.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        step = Step(
            (sys.executable, "-m", "campaign.observe.links.rank"),
            {"CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(out)},
            Counter(spec.hosts),
            preload="campaign.workloads.trainer",
        )
        limit_s = 2 * spec.budget_s + _OPERATION_TIMEOUT_S + _START_TIMEOUT_S
        step_end = setup.launcher.run(step, f"{setup.marker}.{TORCH}", setup.log, out, StepLimits(limit_s))
        if step_end.disturbance and tries > 1:
            return _measure_with_ranks(spec, devices, setup, tries - 1)
        if step_end.disturbance:
            return (None,) * len(devices), [
                f"links: {step_end.disturbance}, {_MAX_TRIES} times in a row; the results were discarded"
            ]
        try:
            ranks = read_links(out, len(devices))
        except RecordError as error:
            return (None,) * len(devices), [f"links: {error}"]
        return ranks, _describe_failures(step_end, ranks, devices, limit_s)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _describe_failures(
    step_end: StepEnd, ranks: Sequence[RankLinks | None], devices: Sequence[MeasuredDevice], limit_s: float
) -> list[str]:
    """Describe a timeout of the measurement, or else the ranks that failed or wrote no result, one message each."""
    if step_end.timed_out:
        return [f"the measurement was stopped after {limit_s:g} s, and its results were discarded"]
    messages = []
    for number, (rank, device) in enumerate(zip(ranks, devices, strict=True)):
        code = step_end.codes[number] if number < len(step_end.codes) else None
        if rank is None:
            messages.append(f"rank {number} ({device.name}) wrote no result: {_describe_exit(code)}")
        elif rank.error:
            messages.append(f"rank {number} ({device.name}) failed: {rank.error}")
    return messages


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "it was killed with the other ranks"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}, see the log"


SCHEMA = "links-of-use/1"
MeasurementTime = Literal["before", "after"]


def list_measurement_times(campaign: Campaign) -> tuple[MeasurementTime, ...]:
    """Determine when a campaign measures links: before its runs, after them, both, or never (an empty tuple).

    By default, links are measured before the runs if a workload needs PyTorch, because PyTorch is then installed.
    """
    if campaign.protocol.links.when is not None:
        return campaign.protocol.links.when
    return ("before",) if any(workload.needs_torch for workload in campaign.workloads.values()) else ()


@dataclass(frozen=True)
class LinkStage:
    """Measurement of the links of a lease during one period of its use. `use` is the id of that period."""

    campaign: Campaign
    results: Results
    store: RecordStore
    use: str
    composition: Composition
    lease: str

    def ensure_measured(
        self, launcher: Launcher, when: MeasurementTime, directory: Path, marker: str
    ) -> tuple[str, tuple[str, ...]]:
        """Measure the links, unless an earlier driver of this use did. Return the document's hash and flags for records.

        Raises LaunchError if nothing could be started.
        """
        stored_file = self.results.measured_links / f"{self.use}.{when}.json"
        if not stored_file.exists():
            write_once(
                stored_file, (json.dumps(self._measure(launcher, when, directory, marker), indent=1) + "\n").encode()
            )
        with reject_damaged_document(stored_file, "move it away, so that the links are measured again"):
            name = str(load_json(stored_file)["document"])
        system = self.campaign.system
        scale = system.emulation.scale if system.emulation and launcher.links and launcher.links["emulated"] else None
        tolerance_pct = self.campaign.protocol.links.tolerance_pct
        return name, flag_slow_links(self.store.read_shared_document(name), system.links, scale, tolerance_pct)

    def _measure(self, launcher: Launcher, when: MeasurementTime, directory: Path, marker: str) -> dict[str, Any]:
        """Measure the links, store the document that records share, and return the entry that refers to it for this use."""
        devices = [device.model for host in self.composition.hosts for device in host.devices if device.can_compute]
        runs_on = self.campaign.find_device_model(devices[0]).runs_on if devices else "cpu"
        log = self.results.logs / self.lease / f"links.{when}.log"
        make_directory(directory)
        setup = LinkTestSetup(launcher, self.composition, directory, marker, log)
        document = measure_links(setup, runs_on, self.campaign.protocol.links)
        header = {"schema_version": SCHEMA, "lease_id": self.use, "lease": self.lease, "when": when}
        return {**header, "document": self.store.share_document(document)}


def read_link_measurements(results: Path, store: RecordStore) -> list[dict[str, Any]]:
    """Read all link measurements of a results directory, sorted by file name, and add fitted models to them."""
    # Imported late, so that planning and driving do not load scipy.
    from campaign.observe.links.alpha_beta_model import add_models

    measurements = []
    for path in sorted(Results.from_directory(results).measured_links.glob("*.json")):
        with reject_damaged_document(path, "restore it from an archive, or move it away"):
            header = load_json(path)
            document = add_models(store.read_shared_document(header["document"]))
            measurements.append({**header, "lease_id": str(header["lease_id"]), "document": document})
    return measurements
