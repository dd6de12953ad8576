"""Common: the validated configuration as REQUEST, and the command and the environment of all jobs."""

import os
import secrets
import sys

try:
    from campaign.common.processes.snakemake_signals import handle_signals

    handle_signals()  # before imports that take a second
    from campaign.spec import snakemake_config
    from campaign.spec.snakemake_config import complete_config, exit_on_error
    from campaign.common.files import share_directories, apply_sharing_umask
    from campaign.common.paths import REPORTS, SCRIPTS
    from campaign.plan.request import DEFAULT_RESULTS, request_from_config
    from campaign.report.source_hash import compute_source_hash
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error}; install the package of this workflow beside Snakemake, with 'pip install .' in a checkout"
    )

with exit_on_error():
    REQUEST = request_from_config(complete_config(workflow, config, DEFAULT_RESULTS))
    # Where several users work in one directory, each must be able to write to what the others, and Snakemake, make there.
    share_directories(Path(".snakemake").resolve())
    apply_sharing_umask(REQUEST.results.resolve())

# The rules call `campaign`, which PATH may not have, or have from another installation.
shell.prefix(snakemake_config.build_command_function(workflow))
# One lease per invocation looks for what dead processes left.
os.environ.update(CAMPAIGN_INVOCATION=secrets.token_hex(8))
# By default, Matplotlib keeps its list of fonts in the home directory.
os.environ.setdefault("MPLCONFIGDIR", str(Path(".snakemake", "matplotlib").resolve()))


onstart:
    handle_signals()
