"""The check of the devices of one composition: started, judged, kept. Nothing here needs torch."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from campaign.config.campaign_file import LinkMeasurement
from campaign.config.resolve import Campaign
from campaign.config.system_file import DeviceModel, SystemFile
from campaign.documents.record import Store
from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition
from campaign.files import make_directory, read_bytes, read_json, require_json, write_once
from campaign.launch.protocol import Launcher, Limits
from campaign.launch.rank_placement import UsedDevices
from campaign.lease.campaign_leases import Obtained
from campaign.observe.devices.document import CheckedDevice, CheckSpec, DevicesDocument, Form, StepName, StepResult
from campaign.observe.devices.verdicts import in_words, judge, pace_of, repeated
from campaign.observe.links.external_tools import LinkBench
from campaign.observe.links.lease_links import measure_links
from campaign.paths import Results
from campaign.workloads.protocol import Step
from campaign.workloads.trainer.rank_interface import result_path

SCHEMA = "devices-of-use/1"
_TOGETHER: tuple[StepName, ...] = ("state", "timers", "products", "memory", "host link", "precision")
# Of a form: what each start of processes does. Links are measured before the last one, in the full form.
_STARTS: dict[Form, tuple[tuple[StepName, ...], ...]] = {
    "short": ((*_TOGETHER, "clean"),),
    "full": ((*_TOGETHER, "telemetry"), *(("repeatability",),) * 3, ("memory full",), ("clean",)),
}
_TIMING_S: dict[Form, float] = {"short": 0.5, "full": 1.0}
_TRAINING_S, _TRAINING_ON_CPU_S, _START_LIMIT_S = 10.0, 1.5, 240.0
_LINKS = LinkMeasurement(sizes_bytes=(8, 65536, 2**20, 2**26, 2**28, 2**30), budget_s=60)
_LINKS_ON_CPU = LinkMeasurement(sizes_bytes=(8, 65536, 2**18), repeats=3, warmup=1, budget_s=15)


@dataclass(frozen=True)
class DeviceBench:
    """Where devices are checked. mark: beginning of CAMPAIGN_RUN of everything that is started; log: says what is done, too."""

    launcher: Launcher
    composition: Composition
    directory: Path
    mark: str
    log: Path


def check_devices(bench: DeviceBench, system: SystemFile, form: Form) -> DevicesDocument:
    """All steps of a form on all devices, without verdicts. LaunchError: nothing could be started."""
    started, devices = time.time(), described(bench.composition, system)
    found: list[list[StepResult]] = [[] for _ in devices]
    links: dict[str, dict[str, Any]] = {}
    for number, steps in enumerate(_STARTS[form], 1):
        if steps == ("clean",):
            links = _links(bench, devices)
        for rank, device in enumerate(_started(bench, devices, form, steps, number)):
            found[rank] += device.steps
            devices[rank] = device.model_copy(update={"steps": ()})
    return DevicesDocument(
        system=system.name,
        form=form,
        started=started,
        took_s=round(time.time() - started, 1),
        devices=[d.model_copy(update={"steps": repeated(steps)}) for d, steps in zip(devices, found, strict=True)],
        links=links,
    )


def described(composition: Composition, system: SystemFile) -> list[CheckedDevice]:
    """The devices of a composition in the order of their ranks."""
    return [
        CheckedDevice(
            name=f"{host}.{device.kind}{index}",
            host=host,
            fabric_id=device.fabric_id,
            attach="local" if device.local else "fabric",
            model=device.model,
            kind=system.devices.get(device.model, DeviceModel()).runs_on,
            pace=pace_of(system, device.model),
            uuid=device.host_id or "",
        )
        for host, own in UsedDevices(composition).by_host.items()
        for index, device in enumerate(own)
    ]


def _started(
    bench: DeviceBench, devices: Sequence[CheckedDevice], form: Form, steps: Sequence[StepName], number: int
) -> list[CheckedDevice]:
    """Start one process on each device, side by side; what one does not leave is a fault of its device."""
    with bench.log.open("a") as log:
        print(f"devices: {', '.join(steps)}, start {number} of {len(_STARTS[form])}", file=log)
    out = bench.directory / f"start{number}"
    shutil.rmtree(out, ignore_errors=True)
    make_directory(out)
    on_cpu = all(device.kind == "cpu" for device in devices)
    training_s = _TRAINING_ON_CPU_S if on_cpu else _TRAINING_S
    spec = CheckSpec(
        steps=steps, form=form, devices=devices, mark=bench.mark, seconds=_TIMING_S[form], training_s=training_s
    )
    path = out / "spec.json"
    path.write_text(spec.model_dump_json())
    step = Step(
        (sys.executable, "-m", "campaign.observe.devices.rank"),
        {"CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(out)},
        Counter(device.host for device in devices),
        preload="campaign.workloads.trainer",
    )
    ended = bench.launcher.run(step, f"{bench.mark}.{number}", bench.log, out, Limits(_START_LIMIT_S))
    found = []
    for rank, device in enumerate(devices):
        left = _left(result_path(out, rank)) or device
        missing = [name for name in steps if left.step(name) is None]
        code = ended.codes[rank] if rank < len(ended.codes) else None
        why = f"stopped after {_START_LIMIT_S:g} s" if ended.timed_out else f"its process ended, with exit code {code}"
        lost = [StepResult(step=name, faults=(why,)) for name in missing[:1]]
        lost += [StepResult(step=name, skipped="its process had ended") for name in missing[1:]]
        found.append(left.model_copy(update={"steps": (*left.steps, *lost)}))
    shutil.rmtree(out, ignore_errors=True)
    return found


def _left(whole: Path) -> CheckedDevice | None:
    for path in (whole, whole.with_suffix(".partial")):
        with suppress(OSError, ValidationError):
            return CheckedDevice.model_validate_json(read_bytes(path))
    return None


def _links(bench: DeviceBench, devices: Sequence[CheckedDevice]) -> dict[str, dict[str, Any]]:
    """Between the devices of each host, one host at a time."""
    found = {}
    emulated = bool(bench.launcher.links and bench.launcher.links["emulated"])
    for host in bench.composition.hosts:
        if len(host.devices) > 1:
            kind = next(device.kind for device in devices if device.host == host.name)
            only = LinkBench(
                bench.launcher, Composition((host,)), bench.directory / "links", f"{bench.mark}.links", bench.log
            )
            document = measure_links(only, kind, _LINKS_ON_CPU if kind == "cpu" else _LINKS)
            found[host.name] = {**document, "emulated": emulated}
    return found


def kept_of_site(root: Path, system: str, what: str) -> Path:
    """A document that a system's campaigns share: the `last` check of `campaign check --devices`, or the `reference`."""
    return Results(root, "").system_state(system) / "devices" / f"{what}.json"


@dataclass(frozen=True)
class DeviceStage:
    """Checks the devices of one use of a lease, and keeps with its results what is known of the site's devices."""

    campaign: Campaign
    results: Results
    store: Store
    obtained: Obtained
    lease: str

    def look(self, launcher: Launcher, directory: Path, mark: str) -> None:
        """Check as the campaign asks. LaunchError: a device fails the short form, so that nothing is to be measured on it."""
        check = self.campaign.protocol.check
        kept = self.results.devices / f"{self.obtained.use}.{check or 'site'}.json"
        if not kept.exists():
            of_site = {w: read_json(kept_of_site(self.results.root, self.campaign.system.name, w)) for w in _OF_SITE}
            said = {what: self.store.share(document) for what, document in of_site.items() if document}
            if check:
                log = self.results.logs / self.lease / "devices.log"
                make_directory(log.parent)
                bench = DeviceBench(launcher, self.obtained.composition, directory, mark, log)
                found = check_devices(bench, self.campaign.system, "full" if check == "acceptance" else "short")
                before = DevicesDocument.model_validate(of_site["reference"]) if "reference" in said else None
                judged = {
                    "verdicts": judge(found, self.campaign.system, before),
                    "reference": said.get("reference", ""),
                }
                said["document"] = self.store.share(found.model_copy(update=judged).model_dump(mode="json"))
            if said:
                head = {"schema_version": SCHEMA, "lease_id": self.obtained.use, "lease": self.lease}
                write_once(kept, (json.dumps({**head, **said}, indent=1) + "\n").encode())
        if check == "devices":
            document = self.store.shared_document(require_json(kept, "move it away")["document"])
            if failed := DevicesDocument.model_validate(document).failed:
                words = "; ".join(f"{each.device}: {each.step}: {in_words(each)}" for each in failed[:3])
                raise LaunchError(f"`check: devices`: nothing is measured on this composition, because {words}")


_OF_SITE = ("last", "reference")
