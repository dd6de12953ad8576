"""The links of one lease: measured once per use, stored in `links/<use>.<when>.json` of the results directory, and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from campaign.config.resolve import Campaign
from campaign.documents.record import Store
from campaign.errors import RecordError
from campaign.files import write_once
from campaign.launch.protocol import Launcher
from campaign.lease.campaign_leases import Obtained
from campaign.observe.links.expectation import flags
from campaign.observe.links.measure_links import measure_links
from campaign.paths import Results

SCHEMA = "links-of-use/1"
When = Literal["before", "after"]


def asked_of(campaign: Campaign) -> tuple[When, ...]:
    """When a campaign measures links: as configured, otherwise before its runs if it trains, since PyTorch is installed then."""
    if campaign.protocol.links.when is not None:
        return campaign.protocol.links.when
    return ("before",) if any(workload.needs_torch for workload in campaign.workloads.values()) else ()


@dataclass(frozen=True)
class LinkStage:
    """Measures the links of one use of a lease."""

    campaign: Campaign
    results: Results
    store: Store
    obtained: Obtained
    lease: str

    def look(self, launcher: Launcher, when: When, directory: Path, marker: str) -> tuple[str, tuple[str, ...]]:
        """Hash of the document in shared/, and flags for records measured over these links.

        Links that an earlier driver of this use has measured are not measured again. LaunchError: nothing could be started.
        """
        kept = self.results.links / f"{self.obtained.use}.{when}.json"
        if not kept.exists():
            write_once(kept, (json.dumps(self._measured(launcher, when, directory, marker), indent=1) + "\n").encode())
        try:
            name = str(json.loads(kept.read_bytes())["document"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{kept}: cannot be read ({error}); move it away, and the links are measured again"
            ) from error
        system = self.campaign.system
        scale = system.emulation.scale if system.emulation and launcher.links and launcher.links["emulated"] else None
        tolerance_pct = self.campaign.protocol.links.tolerance_pct
        return name, flags(self.store.shared_document(name), system.links, scale, tolerance_pct)

    def _measured(self, launcher: Launcher, when: When, directory: Path, marker: str) -> dict[str, Any]:
        composition = self.obtained.composition
        devices = [device.model for host in composition.hosts for device in host.devices if device.computes]
        runs_on = self.campaign.device(devices[0]).runs_on if devices else "cpu"
        log = self.results.logs / self.lease / f"links.{when}.log"
        directory.mkdir(parents=True, exist_ok=True)
        document = measure_links(launcher, composition, runs_on, self.campaign.protocol.links, directory, marker, log)
        said = {"schema_version": SCHEMA, "lease_id": self.obtained.use, "lease": self.lease, "when": when}
        return {**said, "document": self.store.share(document)}


def links_of_uses(results: Path, store: Store) -> list[dict[str, Any]]:
    """All link measurements of a results directory, by file name: lease_id, lease, when, and the document."""
    # Here, so that planning and driving load no scipy.
    from campaign.observe.links.alpha_beta_model import with_models

    found = []
    for path in sorted(Results.at(results).links.glob("*.json")):
        try:
            said = json.loads(path.read_bytes())
            found.append({**said, "document": with_models(store.shared_document(said["document"]))})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{path}: cannot be read ({error}); restore it from an archive, or move it away"
            ) from error
    return found
