"""Measure: composes each lease, measures every run of it that has no record, and releases it; one process does so for all leases.

REQUIRES: plan/plan.{digest}.{n}.json; plan/leases/; the system's fabric and launcher
PROVIDES: records/, shared/, leases/, logs/, manifests/{lease}/{runs}.json; work/measured/{manifests}.json, its only declared
output, which lists the manifests: what was measured is not Snakemake's to delete. {manifests} is a digest of their names, in which
{runs} is a digest of the runs: so the job runs exactly when a record is missing, whatever Snakemake remembers.
"""

import atexit
import signal

from campaign.files import acquire_lock
from campaign.run.measure_plan import STARTS_WHILE


def prepare_for_signals():
    """Make `campaign measure` the one that Ctrl-C and SIGTERM are for: to Snakemake all leases are one job, which it lets finish.

    Leases are started while this process holds a lock: until it dies, or SIGTERM tells it to finish what runs. Ctrl-C has it wait for
    its job; a second one is for the job alone, and would only interrupt the waiting.
    """
    path = Path(".snakemake", f"starts.{os.getpid()}.lock").resolve()
    atexit.register(path.unlink, missing_ok=True)
    os.environ[STARTS_WHILE] = str(path)
    lock, of_snakemake = [acquire_lock(path)], signal.getsignal(signal.SIGTERM)

    def finish(*given):
        while lock:
            os.close(lock.pop())
        of_snakemake(*given)

    def interrupt(*given):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.default_int_handler(*given)

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, interrupt)


onstart:
    prepare_for_signals()


rule measure:
    input:
        PLAN,
    output:
        f"{RESULTS}/work/measured/{{manifests}}.json",
    wildcard_constraints:
        manifests="(?!)" if CAMPAIGN_DAG.is_measured else "[0-9a-f]+",
    conda:
        "../../envs/campaign.yaml"
    # Waiting for Slurm takes none.
    threads: 1 if CAMPAIGN_DAG.campaign.system.launcher == "slurm" else CORES
    resources:
        # Words are a resource because what is expected to take how long must not count as a change of the job.
        words=CAMPAIGN_DAG.describe(),
        campaign=CAMPAIGN,
        results=shlex.quote(str(CAMPAIGN_DAG.asked.results)),
        at_once=CORES,
    message:
        "{resources.words}"
    shell:
        "{resources.campaign} measure {input:q} --results {resources.results} --manifest {output:q} --cores {resources.at_once}"
