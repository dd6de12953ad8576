"""All devices of a system in one composition, checked as the lease of a campaign of their own (`results/check-<system>`).

So Slurm, journals, locks and what an interruption leaves are those of any lease. The campaign has one cell, of next to no time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from campaign.config.campaign_file import CampaignFile
from campaign.config.check import Sources
from campaign.config.load import validate
from campaign.config.open_fabric import placing
from campaign.config.resolve import Campaign, resolve
from campaign.config.system_file import SystemFile
from campaign.config.yaml_file import YamlFile
from campaign.documents.record import Store
from campaign.errors import ConfigError, LaunchError, nearest
from campaign.files import read_json
from campaign.lease.campaign_leases import Site
from campaign.observe.devices.document import DevicesDocument
from campaign.paths import Results
from campaign.plan.lease_plans import lease_plans
from campaign.plan.matrix import expand
from campaign.plan.plan import build_plan
from campaign.run import measure_lease
from campaign.wording import plural
from campaign.workloads import workload_class

_NAME = "all"
_LEASE = f"{_NAME}.c1"
_LIMIT_S, _WAIT_S = 1800.0, 60.0
Say = Callable[[str], None]


def results_of(system: SystemFile, root: Path) -> Results:
    return Results(root, f"check-{system.name}"[:48])


def log_of(system: SystemFile, root: Path) -> Path:
    """The log of a check, which says what is done at the moment."""
    return results_of(system, root).logs / _LEASE / "devices.log"


def measure(
    system: SystemFile, root: Path, hosts: Sequence[str], say: Say, *, short: bool = False
) -> tuple[DevicesDocument, list[str]]:
    """The check of all devices that these hosts (none: all) reach in one composition, and what it leaves out, in words.

    LaunchError, FabricError: it could not be composed or started.
    """
    if unknown := sorted(set(hosts) - set(system.usable_hosts())):
        raise ConfigError(f"--host {unknown[0]}: {nearest(unknown[0], system.usable_hosts())}")
    if hosts:
        tenancy = system.tenancy.model_copy(update={"allowed_hosts": tuple(hosts)})
        system = system.model_copy(update={"tenancy": tenancy})
    results = results_of(system, root)
    campaign, missed = _composable(Site(system, root), results, "devices" if short else "acceptance")
    (lease,) = lease_plans(build_plan(campaign, expand(campaign)))
    manifest = measure_lease.measure(lease, results, say)
    kept = [read_json(path) for use in manifest["uses"] for path in results.devices.glob(f"{use}.*.json")]
    documents = [each["document"] for each in kept if "document" in each]
    if not documents:
        raise LaunchError(f"the devices of {system.name} were not checked: {manifest['reason']}")
    return DevicesDocument.model_validate(Store(results.directory).shared_document(documents[-1])), missed


def _composable(site: Site, results: Results, check: str) -> tuple[Campaign, list[str]]:
    """The campaign of the largest composition that the fabric's rules allow: the hosts' own devices, and the pool spread evenly."""
    hosts, why = site.system.usable_hosts(), "there is none"
    with site.fabric() as fabric:
        devices = [d for d in fabric.inventory_planned().devices if d.computes and d.health != "critical"]
        own = {host: [d.model for d in devices if d.local and d.attached_to == host] for host in hosts}
        pooled = [d.model for d in devices if not d.local]
        for count in range(len(pooled), -1, -1):
            for sharing in range(len(hosts) if count else 1, 0, -1):
                taken = {host: pooled[number:count:sharing] for number, host in enumerate(hosts[:sharing])}
                if not (listed := [each for host in hosts if (each := _listed(own[host], taken.get(host, [])))]):
                    continue
                campaign = _campaign(site.system, results.campaign, listed, check)
                unfit = placing(fabric, campaign)(campaign.configurations[0]).unfit
                if unfit is None:
                    left = plural(len(pooled) - count, "device")
                    rule = f"{left} of the pool, which one composition cannot hold beside the others"
                    return campaign, [rule] if count < len(pooled) else []
                why = unfit
    raise ConfigError(f"system {site.system.name}: no device of it can be composed: {why}")


def _listed(own: Sequence[str], pooled: Sequence[str]) -> dict[str, Any]:
    """A host of a shape, by the models of its devices; {} for none."""
    parts = [("local", Counter(own)), ("fabric", Counter(pooled))]
    devices = [{"count": n, "device": model, "attach": way} for way, counts in parts for model, n in counts.items()]
    return {"devices": devices} if devices else {}


def _campaign(system: SystemFile, name: str, hosts: Sequence[dict[str, Any]], check: str) -> Campaign:
    protocol: dict[str, Any] = {"check": check, "links": {"when": []}, "telemetry_s": None, "attempts": 1}
    protocol |= {"repetitions": 1, "compositions": 1, "warmup_steps": 0, "measured_steps": 1}
    protocol |= {"time_limit_s": _LIMIT_S, "compose_wait_s": _WAIT_S}
    # Devices with a pace do not slow each other down, whoever uses them.
    protocol |= {"isolation": "host"} if system.emulation and system.emulation.pace else {}
    document = {
        "name": name,
        "system": system.name,
        # Another label each time: what was measured before does not count.
        "version": time.strftime("at-%Y%m%d-%H%M%S"),
        "configurations": [{"name": _NAME, "hosts": list(hosts)}],
        "axes": {"workload": ["nothing"]},
        "protocol": protocol,
    }
    source = YamlFile(Path(name), document, {})
    nothing = {"name": "nothing", "kind": "synthetic", "precisions": ["fp32"], "real_time": False}
    workloads = {"nothing": workload_class("synthetic").model_validate(nothing)}
    empty = YamlFile(Path("nothing"), nothing, {})
    sources = Sources(source, {system.name: YamlFile(Path(system.name), {}, {})}, {"nothing": empty})
    return resolve(Path(name), validate(source, CampaignFile), [system], workloads, sources)
