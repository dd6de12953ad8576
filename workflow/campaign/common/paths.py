"""Where files are: those of the project itself, those of a results directory, and the state that campaigns on one system share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from campaign.common.files import content_hash, find_files

# In a checkout the project's files are beside the package, in an installed wheel inside it.
_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent.parent

ROOT = _CHECKOUT if (_CHECKOUT / "workflow" / "Snakefile").is_file() else _PACKAGE / "_shipped"
CONFIG = ROOT / "config"
SNAKEFILE = ROOT / "workflow" / "Snakefile"
REPORTS = ROOT / "reports"
SCRIPTS = ROOT / "scripts"
PUBLISHED = ROOT / "data" / "published"


@dataclass(frozen=True)
class Results:
    """One campaign's results, `<root>/<campaign>`: the name of every file and directory in it that several modules use."""

    root: Path
    campaign: str

    @classmethod
    def at(cls, directory: Path) -> Results:
        """The results in a directory of this name."""
        return cls(directory.parent, directory.name)

    @property
    def directory(self) -> Path:
        return self.root / self.campaign

    @property
    def records(self) -> Path:
        """`<first two digits>/<cell id>.<repetition>.json`."""
        return self.directory / "records"

    @property
    def shared(self) -> Path:
        """What many records have in common: `<hash>.json`."""
        return self.directory / "shared"

    @property
    def superseded(self) -> Path:
        """Records whose runs are measured again: `<time>/records/` and `<time>/why.json`."""
        return self.directory / "superseded"

    @property
    def stops(self) -> Path:
        """Cells that reached the target for their interval."""
        return self.directory / "stops"

    @property
    def readings(self) -> Path:
        """What kept logs were read to say later."""
        return self.directory / "readings"

    @property
    def memory_limits(self) -> Path:
        """Batches that ran out of memory, and batches that fit."""
        return self.directory / "limits"

    @property
    def leases(self) -> Path:
        return self.directory / "leases"

    @property
    def links(self) -> Path:
        """Which links were measured on which use of a lease."""
        return self.directory / "links"

    def telemetry(self, cell_id: str, repetition: int) -> Path:
        """Samples beside one run; `.json.gz` in place of `.parquet` where the host had no pyarrow."""
        return self.directory / "telemetry" / cell_id[:2] / f"{cell_id}.{repetition}.parquet"

    @property
    def images(self) -> Path:
        """Digests of images that were read once."""
        return self.directory / "work" / "images"

    @property
    def manifests(self) -> Path:
        return self.directory / "manifests"

    def list_manifests(self) -> list[Path]:
        """Return the manifests, those behind links included: what readers read is what an archive packs."""
        return find_files(self.manifests, ".json")

    def manifest(self, lease: str, system: str = "") -> Path:
        """What became of the runs of a lease. system: of a campaign on several."""
        return self.manifests / system / f"{lease}.json"

    @property
    def measured(self) -> Path:
        """What all manifests say together: the file that comes after the last lease."""
        return self.manifests / "measured.txt"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def tables(self) -> Path:
        return self.directory / "tables"

    @property
    def figures(self) -> Path:
        return self.directory / "figures"

    @property
    def plan(self) -> Path:
        return self.directory / "plan"

    @property
    def lease_plans(self) -> Path:
        """One document a lease: `<lease>.json`."""
        return self.plan / "leases"

    def lease_plan(self, lease: str) -> Path:
        """The document of a lease."""
        return self.lease_plans / f"{lease}.json"

    @property
    def plan_document(self) -> Path:
        return self.plan / "plan.json"

    @property
    def plan_table(self) -> Path:
        return self.plan / "plan.tsv"

    @property
    def race(self) -> Path:
        """How the race of `campaign run --until best` stands."""
        return self.plan / "race.json"

    @property
    def earlier_spread(self) -> Path:
        """How much compositions differed in earlier campaigns on the system."""
        return self.plan / "earlier_spread.json"

    @property
    def analysis(self) -> Path:
        """What is compared and how, as it was written before the first run, and every later change."""
        return self.plan / "analysis.json"

    @property
    def progress(self) -> Path:
        return self.directory / "progress.jsonl"

    @property
    def slurm(self) -> Path:
        """What the processes of a campaign share of Slurm: one look at the queue, submissions, hosts left out."""
        return self.directory / "slurm"

    @property
    def slurm_calls(self) -> Path:
        """One line for each call of a Slurm command."""
        return self.slurm / "commands.jsonl"

    @property
    def submissions(self) -> Path:
        """A folder for each job that was submitted, with its logs and its result."""
        return self.slurm / "jobs"

    @property
    def recommendation(self) -> Path:
        return self.directory / "recommendation"

    @property
    def report(self) -> Path:
        return self.directory / "report.html"

    def run_mark(self, lease: str) -> str:
        """Beginning of CAMPAIGN_RUN of every process of a lease."""
        return f"{content_hash(str(self.directory.resolve()), 8)}/{lease}/"

    def work(self, lease: str) -> Path:
        """Scratch of one lease: locks, submission, rank files. Of no use once the lease is over."""
        return self.directory / "work" / lease

    def site_check(self, system: str) -> Path:
        """What speaks against all leases on a system, as of the last look before a first lease."""
        return self.directory / "work" / f"checked.{system}.json"

    def measure_lock(self, lease: str) -> Path:
        """Held by the process that composes for a lease, waits for its driver, and releases."""
        return self.work(lease) / "measure.lock"

    def driver_lock(self, lease: str) -> Path:
        """Held by the driver that measures the runs of a lease."""
        return self.work(lease) / "driver.lock"

    def journals(self, system: str) -> Path:
        """Journals of leases on a system, of all campaigns."""
        return self.system_state(system) / "leases"

    def system_state(self, system: str) -> Path:
        """State that campaigns on one system share: the simulated fabric, journals of leases, ownership."""
        return self.root / ".systems" / system


def lease_id(results: Results, lease: str) -> str:
    """Id of a lease on the fabric: readable, and different for two results directories of one campaign name."""
    return f"{results.campaign}.{lease}.{content_hash(str(results.directory.resolve()), 6)}"
