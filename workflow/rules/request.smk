"""Request: reads Snakemake's configuration, and says how rules call the command `campaign`.

REQUIRES: --configfile CAMPAIGN or --config campaign=FILE, with further keys such as where=EXPRESSION or results=DIR; or --config
archive=FILE; config/campaign.yaml otherwise
PROVIDES: ASKED (the request), CAMPAIGN (the command), code_of() (hash of what makes an output), figure_files() (paths)
"""

import os
import shlex
import shutil
import sys

from campaign.config.snakemake_configfile import with_campaign_path
from campaign.config.snakemake_resources import with_resources
from campaign.errors import CampaignError
from campaign.paths import REPORTS, ROOT, SCRIPTS
from campaign.plan.dag import request
from campaign.report.source_hash import source_hash

MODULE = ("-P", "-m", "campaign.cli")


def or_exit(read, *given):
    # A traceback through Snakemake would bury the one line that helps.
    try:
        return read(*given)
    except CampaignError as error:
        sys.exit(f"error: {error}")


def campaign_command():
    """The command `campaign` of the running Python, quoted for a shell; its bare name where that is what PATH finds."""
    checkout = Path(ROOT, "workflow")
    if (
        workflow.deployment_settings.deployment_method
        and (checkout / "campaign").is_dir()
    ):
        # The Python of --sdm conda or apptainer, on the package of this checkout.
        return shlex.join(["env", f"PYTHONPATH={checkout}", "python", *MODULE])
    script = Path(sys.executable).with_name("campaign")
    if script.is_file() and shutil.which("campaign") == str(script):
        return "campaign"
    return shlex.join([sys.executable, *MODULE])


def code_of(*files):
    """A comment to end a command with: a hash of the package and of `files`.

    When it changes, Snakemake's trigger `code` makes the output again. So would a value in `params`, but Snakemake imports pandas
    for that, which takes half a second.
    """
    return f"  # code {source_hash(*files)}"


def figure_files(suffix):
    return [f"{RESULTS}/figures/{figure}.{suffix}" for figure in FIGURES]


def lacks_profile():
    given = [argument.split("=")[0] for argument in sys.argv]
    by_hand = any(
        argument[:2] in ("-c", "-j") or argument in ("--cores", "--jobs")
        for argument in given
    )
    return (
        by_hand and "--profile" not in given and "SNAKEMAKE_PROFILE" not in os.environ
    )


if lacks_profile() and workflow.modifier.is_main_snakefile():
    print(
        "note: no profile; 'snakemake --profile local' has the options for this machine, --profile slurm those for a cluster",
        file=sys.stderr,
    )


def asked():
    given = with_resources(workflow.resource_settings, sys.argv, os.environ, config)
    return request(
        with_campaign_path(given, [Path(file) for file in workflow.configfiles])
    )


ASKED = or_exit(asked)
CAMPAIGN = campaign_command()
# Matplotlib keeps its list of fonts in the home directory unless told otherwise.
os.environ.setdefault("MPLCONFIGDIR", str(Path(".snakemake", "matplotlib").resolve()))
