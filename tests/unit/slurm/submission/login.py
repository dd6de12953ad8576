"""A login node of the tests: a campaign for Slurm, its submitters, and drivers to submit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.files import hash_document, write_atomic
from campaign.common.paths import Results, lease_id
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.plan.plan import format_lease_name
from campaign.run.driver import Driver
from campaign.slurm import slurm_submitter as slurm
from campaign.slurm.submitter import Submission
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import ComposedHost, Composition
from campaign.spec.system_file import SlurmOptions
from tests.campaign_files import write_files
from tests.planned_leases import plans_of

# A static fabric: Slurm chooses the hosts, so that allocations of one configuration are alike.
ALIKE: Mapping[str, Any] = {
    "system.fabric": {"kind": "static"},
    "system.pool": [],
    "campaign.configurations": [{"devices_per_host": [1, 2]}],
    "campaign.axes.precision": "fp32",
    "campaign.protocol.lease_per": "cell",
}


class Login:
    """A campaign's files and results in `directory`. poll_s: shorter than a system file may say."""

    def __init__(
        self, directory: Path, person: SlurmOptions | None = None, poll_s: float = 0.2, **settings: Any
    ) -> None:
        self.directory = directory
        campaign = load_campaign(directory / "campaign.yaml", "slurm", person)
        changed = campaign.system.slurm.model_copy(update={"poll_s": poll_s, **settings})
        self.campaign = replace(
            campaign, systems={campaign.part: campaign.system.model_copy(update={"slurm": changed})}
        )
        self.results = Results(directory / "results", campaign.name)
        self.said: list[str] = []

    def leases(self, configuration: str | None = None) -> list[str]:
        """Names of the leases, each once, in order."""
        cells = expand_matrix(self.campaign).cells
        names = [
            format_lease_name(self.campaign.protocol, c) for c in cells if configuration in (None, c.configuration.name)
        ]
        return list(dict.fromkeys(names))

    def submitter(self) -> slurm.SlurmSubmitter:
        return slurm.SlurmSubmitter(self.campaign, self.results, Driver, self.said.append)

    def request(self, lease: str, hosts: tuple[str, ...] = ("host1",), use: int = 1) -> DriverRequest:
        composition = Composition(tuple(ComposedHost(name, 4, 8.0) for name in hosts)) if hosts else None
        name = f"{lease_id(self.results, lease)}.{use}" if hosts else None
        plan = self.results.lease_plans / f"{lease}.json"
        if not plan.exists():
            for each in plans_of(self.campaign).values():
                write_atomic(plan.with_name(f"{each.lease}.json"), each.format_text())
        root = str(self.results.root.resolve())
        document = composition.document() if composition else None
        token = hash_document([lease, hosts, use])
        return DriverRequest(str(plan.resolve()), root, self.campaign.name, lease, name, document, (), token)

    @contextmanager
    def measuring(self, *leases: str) -> Iterator[None]:
        """What `measure` holds while it asks for a lease."""
        with ExitStack() as stack:
            for lease in leases:
                stack.enter_context(files.hold_lock(self.results.work_directory(lease) / "measure.lock"))
            yield

    def submit(self, lease: str, **changes: Any) -> Submission:
        with self.measuring(lease):
            return self.submitter().submit(self.request(lease, **changes))


def login(directory: Path, changes: Mapping[str, Any] | None = None, **settings: Any) -> Login:
    write_files(directory, changes)
    return Login(directory, **settings)


def request_in(pickled: Path) -> DriverRequest:
    """What the job of a file of submitit will be asked for."""
    from submitit.helpers import DelayedSubmission

    request = DelayedSubmission.load(pickled).function.driver.request
    assert isinstance(request, DriverRequest)
    return request


def finish(submission: Submission, driven: DriverResult | None = None) -> None:
    """Leave a result as the driver would."""
    document = (driven or DriverResult()).document()
    files.write_json(submission.result_file, {"token": submission.request.token, **document})
