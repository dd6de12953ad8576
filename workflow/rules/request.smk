"""What was asked for, typed at the door.

REQUIRES: --config campaign=FILE [where=EXPRESSION] [results=DIR], or --config archive=FILE; config/campaign.yaml otherwise
PROVIDES: ASKED, command_of(): scripts as commands
"""

import os
import shlex
import sys

from campaign.plan.dag import request
from campaign.errors import CampaignError


def or_exit(read, *given):
    # A traceback through Snakemake would bury the one line that helps.
    try:
        return read(*given)
    except CampaignError as error:
        sys.exit(f"error: {error}")


def archived_report():
    if not ASKED.archive.is_file():
        sys.exit(
            f"error: {ASKED.archive}: no such archive; 'campaign archive' makes one"
        )
    return str(ASKED.results / "archives" / ASKED.archive.stem / "report.html")


def command_of(name):
    """A command that runs one of scripts/ on what was asked, quoted for a shell.

    For the rules between a run and its numbers: for `script:` and `params:` Snakemake loads pandas, half a second each time.
    """
    return shlex.join(
        [
            sys.executable,
            "-P",
            str(Path(workflow.basedir, "scripts", name)),
            *ASKED.arguments(),
        ]
    )


ASKED = or_exit(request, config)
# Matplotlib keeps its list of fonts in the home directory unless told otherwise.
os.environ.setdefault("MPLCONFIGDIR", str(Path(".snakemake", "matplotlib").resolve()))
