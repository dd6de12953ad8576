"""Request: reads Snakemake's configuration, and has the command `campaign` found by the rules.

REQUIRES: --configfile CAMPAIGN or --config campaign=FILE, with further keys such as where=EXPRESSION or results=DIR; or --config
archive=FILE; config/campaign.yaml otherwise
PROVIDES: ASKED (the request), code_of() (hash of what makes an output), asks_for() (whether a rule is a target),
prepare_for_signals()
"""

import os
import secrets
import shlex
import shutil
import signal
import sys
import threading
from functools import cache
from importlib.util import find_spec

from snakemake.logging import logger
from snakemake.path_modifier import PathModifier

NOT_INSTALLED = (
    f"the package of this workflow is not installed for {sys.executable}; "
    "install it beside Snakemake, with 'pip install .' in a checkout of the workflow"
)
try:
    from campaign.config.snakemake_config import (
        profile_names,
        with_campaign_path,
        with_limits,
        with_resources,
        with_typed_texts,
    )
    from campaign.errors import CampaignError, unwritable
    from campaign.files import share_directories, share_like
    from campaign.paths import REPORTS, ROOT, SCRIPTS
    from campaign.plan.request import DEFAULT_RESULTS, request_of
    from campaign.report.source_hash import source_hash as code_of
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; {NOT_INSTALLED}")
if (
    workflow.output_settings.dryrun or workflow.execution_settings is not None
) and not find_spec("click"):
    sys.exit(f"error: No module named 'click'; {NOT_INSTALLED}")


def or_exit(read, *given):
    # A traceback through Snakemake would bury the one line that helps.
    try:
        return read(*given)
    except CampaignError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {unwritable(error, Path.cwd())}")


def provide_command():
    """Have `campaign` be the command of the running Python where it is not what PATH finds, or not in the job's environment."""
    checkout, script = Path(ROOT, "workflow"), Path(sys.executable).with_name(
        "campaign"
    )
    if (
        workflow.deployment_settings.deployment_method
        and (checkout / "campaign").is_dir()
    ):
        # The Python of --sdm conda or apptainer, on the package of this checkout.
        python = ["env", f"PYTHONPATH={checkout}", "python"]
    elif script.is_file() and shutil.which("campaign") == str(script):
        return
    else:
        python = [sys.executable]
    command = shlex.join([*python, "-P", "-m", "campaign.cli"])
    # Snakemake formats a prefix.
    command = command.replace("{", "{{").replace("}", "}}")
    shell.prefix(f'campaign() ( exec {command} "$@" ); ')


def asks_for(rule):
    """Whether a rule is where the user wants to end; as a part of another workflow it may have a prefix."""
    asked = {*workflow.dag_settings.targets, *workflow.dag_settings.until}
    return any(name == rule or name.endswith(f"_{rule}") for name in asked)


def lacks_profile():
    given = [argument.split("=")[0] for argument in sys.argv]
    by_hand = any(
        argument[:2] in ("-c", "-j") or argument in ("--cores", "--jobs")
        for argument in given
    )
    return by_hand and not profile_names(sys.argv, os.environ)


if lacks_profile() and workflow.modifier.is_main_snakefile():
    print(
        "note: no profile; 'snakemake --profile local' has the options for this machine, --profile slurm those for a cluster",
        file=sys.stderr,
    )


def asked():
    given = with_typed_texts(config, workflow.config_settings.config_args)
    given = with_resources(workflow.resource_settings, sys.argv, os.environ, given)
    given = with_campaign_path(given, [Path(file) for file in workflow.configfiles])
    # Snakemake would put the `prefix:` of a module before all paths of the rules, also those of this machine's files, but not into
    # what commands read in documents. So the directory of the results takes it.
    results = workflow.modifier.path_modifier.replace_prefix(
        given.get("results", DEFAULT_RESULTS)
    )
    workflow.modifier.path_modifier = PathModifier(None, None, workflow)
    return request_of({**given, "results": results})


ASKED = or_exit(asked)
# Where several users work in one directory, each must be able to write to what the others, and Snakemake, make there.
or_exit(share_directories, Path(".snakemake").resolve())
or_exit(share_like, ASKED.results.resolve())
provide_command()
# Of the leases of one invocation, one looks for what dead processes left.
os.environ.update(CAMPAIGN_INVOCATION=secrets.token_hex(8))
# Matplotlib keeps its list of fonts in the home directory unless told otherwise.
os.environ.setdefault("MPLCONFIGDIR", str(Path(".snakemake", "matplotlib").resolve()))


@cache
def prepare_for_signals():
    """Have Ctrl-C, once or more, and SIGTERM end Snakemake in good order: leases that run are for `campaign measure` to end."""
    graceful = signal.getsignal(signal.SIGTERM)

    def is_no_end_of_a_job(record):
        event = getattr(getattr(record, "event", None), "name", "")
        return (
            event != "JOB_ERROR" and getattr(record, "exception", "") != "RuleException"
        )

    def start_nothing():
        # Of the jobs that Snakemake has selected, those beyond its threads are still to be started.
        shell.prefix("exit 130; ")
        # A lease says in a sentence that it was stopped; how its shell ended would bury that under fifteen lines.
        logger.addFilter(is_no_end_of_a_job)

    def interrupt(*given):
        start_nothing()
        # A second one would interrupt the waiting for jobs, with a traceback.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.default_int_handler(*given)

    def finish(*given):
        start_nothing()
        # In a thread, since Snakemake takes a lock here, which the code that the signal interrupts may hold.
        threading.Thread(target=graceful, args=given, daemon=True).start()

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, finish)


# Of a report from an archive; else it is done before the first job, also in a workflow that has this one as a module.
onstart:
    prepare_for_signals()
