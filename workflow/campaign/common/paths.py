"""Paths of the files of the project, of a results directory, and of the state that campaigns on one system share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from campaign.common.files import find_files, hash_document

# The project's files are next to the package in a checkout, and inside it in an installed wheel.
_PACKAGE_DIRECTORY = Path(__file__).resolve().parents[1]
_CHECKOUT_DIRECTORY = _PACKAGE_DIRECTORY.parent.parent

ROOT = (
    _CHECKOUT_DIRECTORY
    if (_CHECKOUT_DIRECTORY / "workflow" / "Snakefile").is_file()
    else _PACKAGE_DIRECTORY / "_shipped"
)
CONFIG_DIRECTORY = ROOT / "config"
SNAKEFILE = ROOT / "workflow" / "Snakefile"
REPORTS = ROOT / "reports"
SCRIPTS = ROOT / "scripts"
PUBLISHED_DATA_DIRECTORY = ROOT / "data" / "published"


def list_figure_directories() -> list[Path]:
    """Return the directories with files of figures: that of the program, and `scripts/figures/` of the current directory."""
    project_directory = Path("scripts/figures").resolve()
    directories = [SCRIPTS / "figures"]
    if project_directory.is_dir() and project_directory != directories[0]:
        directories.append(project_directory)
    return directories


def find_figure_files(scripts: Path = SCRIPTS) -> dict[str, Path]:
    """Return the files of figures by name, sorted. A figure of the current directory replaces one of the program.

    Args:
        scripts: directory with `figures/`. With any other than that of the program, only its figures are found.
    """
    directories = list_figure_directories() if scripts == SCRIPTS else [scripts / "figures"]
    files = {path.stem: path for directory in directories for path in directory.glob("[a-z]*.py")}
    return dict(sorted(files.items()))


@dataclass(frozen=True)
class Results:
    """Paths of all files and directories in the results of one campaign, `<root>/<campaign>`.

    Attributes:
        root: directory of all results.
        campaign: name of the campaign.
    """

    root: Path
    campaign: str

    @classmethod
    def from_directory(cls, directory: Path) -> Results:
        """Return the paths of the results in an existing or future directory `<root>/<campaign>`."""
        return cls(directory.parent, directory.name)

    @property
    def directory(self) -> Path:
        """Directory of the campaign's results."""
        return self.root / self.campaign

    @property
    def records(self) -> Path:
        """Directory of the run records, `<first two digits>/<cell id>.<repetition>.json`."""
        return self.directory / "records"

    @property
    def shared_documents(self) -> Path:
        """Directory of documents that many records have in common: `<hash>.json`."""
        return self.directory / "shared"

    @property
    def superseded_records(self) -> Path:
        """Directory of records whose runs are measured again: `<time>/records/` and `<time>/why.json`."""
        return self.directory / "superseded"

    @property
    def stopped_cells(self) -> Path:
        """Directory of the cells that reached the target for their interval."""
        return self.directory / "stops"

    @property
    def log_readings(self) -> Path:
        """Directory of values that were read from kept logs after the runs."""
        return self.directory / "readings"

    @property
    def memory_limits(self) -> Path:
        """Directory of the batches that ran out of memory and of the batches that fit."""
        return self.directory / "limits"

    @property
    def leases(self) -> Path:
        """Directory of the documents of leases, one per use of a lease."""
        return self.directory / "leases"

    @property
    def measured_links(self) -> Path:
        """Directory of the links that were measured, by use of a lease."""
        return self.directory / "links"

    def telemetry_file(self, cell_id: str, repetition: int) -> Path:
        """Return the path of the telemetry samples of one run.

        The file ends in `.json.gz` instead of `.parquet` if the host had no pyarrow.
        """
        return self.directory / "telemetry" / cell_id[:2] / f"{cell_id}.{repetition}.parquet"

    @property
    def image_digests(self) -> Path:
        """Directory of digests of images, each read once."""
        return self.directory / "work" / "images"

    @property
    def manifests(self) -> Path:
        """Directory of the lease manifests."""
        return self.directory / "manifests"

    def list_manifests(self) -> list[Path]:
        """Return the paths of all manifests that an archive contains, including those behind links."""
        return find_files(self.manifests, ".json")

    def manifest_file(self, lease: str, system: str = "") -> Path:
        """Return the path of a lease's manifest, which states the outcome of its runs.

        Args:
            lease: name of the lease.
            system: name of the system, if the campaign has several.
        """
        return self.manifests / system / f"{lease}.json"

    @property
    def all_measured_file(self) -> Path:
        """Path of measured.txt, the summary of all lease manifests, written after the last lease finishes."""
        return self.manifests / "measured.txt"

    @property
    def logs(self) -> Path:
        """Directory of the logs of runs and of the workflow."""
        return self.directory / "logs"

    @property
    def tables(self) -> Path:
        """Directory of the tables."""
        return self.directory / "tables"

    @property
    def figures(self) -> Path:
        """Directory of the figures."""
        return self.directory / "figures"

    @property
    def plan(self) -> Path:
        """Directory of the plan."""
        return self.directory / "plan"

    @property
    def lease_plans(self) -> Path:
        """Directory of the lease plans, one document per lease: `<lease>.json`."""
        return self.plan / "leases"

    def lease_plan_file(self, lease: str) -> Path:
        """Return the path of the plan of one lease."""
        return self.lease_plans / f"{lease}.json"

    @property
    def plan_file(self) -> Path:
        """Path of the plan as a document."""
        return self.plan / "plan.json"

    @property
    def plan_table_file(self) -> Path:
        """Path of the plan as a table."""
        return self.plan / "plan.tsv"

    @property
    def race_file(self) -> Path:
        """Path of the state of the race of `campaign run --until best`."""
        return self.plan / "race.json"

    @property
    def earlier_spread_file(self) -> Path:
        """Path of the spread between compositions in earlier campaigns on the system."""
        return self.plan / "earlier_spread.json"

    @property
    def analysis_file(self) -> Path:
        """Path of the analysis plan as written before the first run, with all later changes."""
        return self.plan / "analysis.json"

    @property
    def progress_file(self) -> Path:
        """Path of the progress log."""
        return self.directory / "progress.jsonl"

    @property
    def slurm_state(self) -> Path:
        """Directory of the state about Slurm that the processes of a campaign share.

        It holds the last state of the queue, the submitted jobs and the excluded hosts.
        """
        return self.directory / "slurm"

    @property
    def slurm_call_log(self) -> Path:
        """Path of the log of Slurm commands, one line per call."""
        return self.slurm_state / "commands.jsonl"

    @property
    def submissions(self) -> Path:
        """Directory of submitted jobs, with one subdirectory per job for its logs and its result."""
        return self.slurm_state / "jobs"

    @property
    def recommendation(self) -> Path:
        """Directory of the recommendation."""
        return self.directory / "recommendation"

    @property
    def report_file(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    def run_mark_prefix(self, lease: str) -> str:
        """Return the prefix of CAMPAIGN_RUN that all processes of a lease share."""
        return f"{hash_document(str(self.directory.resolve()), 8)}/{lease}/"

    def work_directory(self, lease: str) -> Path:
        """Return the scratch directory of one lease, with its locks, submission and rank files.

        Its content is not needed after the lease has ended.
        """
        return self.directory / "work" / lease

    def site_check_file(self, system: str) -> Path:
        """Return the path of the problems that affect all leases on a system, as found by the last check before a first lease."""
        return self.directory / "work" / f"checked.{system}.json"

    def measure_lock_file(self, lease: str) -> Path:
        """Return the path of the lock held by the process that composes for a lease, waits for its driver, and releases."""
        return self.work_directory(lease) / "measure.lock"

    def driver_lock_file(self, lease: str) -> Path:
        """Return the path of the lock held by the driver that measures the runs of a lease."""
        return self.work_directory(lease) / "driver.lock"

    def journals_directory(self, system: str) -> Path:
        """Return the directory of the lease journals of all campaigns on a system."""
        return self.system_state_directory(system) / "leases"

    def system_state_directory(self, system: str) -> Path:
        """Return the directory of the state that campaigns on one system share.

        It holds the simulated fabric, the journals of leases, and their ownership.
        """
        return self.root / ".systems" / system


def lease_id(results: Results, lease: str) -> str:
    """Return the readable id of a lease on the fabric.

    The id differs between two results directories of campaigns with the same name.
    """
    return f"{results.campaign}.{lease}.{hash_document(str(results.directory.resolve()), 6)}"
