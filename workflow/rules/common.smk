"""Common: the validated configuration REQUEST, and the command and environment of all jobs."""

import os, secrets, sys

try:
    from campaign.common.processes.snakemake_signals import handle_signals

    handle_signals()  # The imports below take a second, so signals are handled first.
    from campaign.spec import snakemake_config
    from campaign.spec.snakemake_config import complete_config, exit_on_error
    from campaign.common.files import share_directories, apply_sharing_umask
    from campaign.common.paths import REPORTS, SCRIPTS
    from campaign.plan.request import DEFAULT_RESULTS, request_from_config
    from campaign.report.source_hash import compute_source_hash
except ModuleNotFoundError as error:
    remedy = "install the workflow's package into Snakemake's environment"
    sys.exit(f"error: {error}; {remedy}")

# A checkout and a deployed copy have this file. Elsewhere, --config and --configfile suffice.
if Path("config/config.yaml").is_file():

    configfile: "config/config.yaml"


with exit_on_error():
    REQUEST = request_from_config(complete_config(workflow, config, DEFAULT_RESULTS))
    # If several users work in one directory, each must be able to write to the files of the others and of Snakemake.
    share_directories(Path(".snakemake").resolve())
    apply_sharing_umask(REQUEST.results.resolve())

# The rules call `campaign`. PATH may not contain it, or may contain that of another installation.
shell.prefix(snakemake_config.build_command_function(workflow))
# The token identifies the invocation, in which only one lease cleans up after dead processes.
os.environ.update(CAMPAIGN_INVOCATION=secrets.token_hex(8))
# By default, Matplotlib stores its list of fonts in the home directory, which may not be writable.
os.environ.setdefault("MPLCONFIGDIR", str(Path(".snakemake", "matplotlib").resolve()))


onstart:
    handle_signals()
