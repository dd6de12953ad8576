"""Snakemake's configuration and options: what a person may give is completed, and what the campaign would not use is refused."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from campaign.common.errors import CampaignError, ConfigError, convert_os_error
from campaign.common.paths import ROOT
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.yaml_file import read_yaml

NOT_INSTALLED = "install the package of this workflow beside Snakemake, with 'pip install .' in a checkout"
_SNAKEMAKE_DEFAULTS = ("launcher", "tmpdir", "mem", "mem_mb", "mem_mib", "disk", "disk_mb", "disk_mib")
"""Resources that `--default-resources` may hold: the profile's launcher, and Snakemake's own, which no rule uses."""
_ALLOCATION_RESOURCES = (
    "runtime", "qos", "constraint", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "cpus_per_gpu", "tasks", "tasks_per_gpu", "ntasks",
    "nodes", "gres", "gpu", "gpus", "gpu_model", "clusters", "reservation", "mpi",
)  # fmt: skip
"""Resources of the Slurm executor of Snakemake; further ones begin with `slurm_`."""
_INSTEAD = (
    "the campaign requests allocations itself, as its compositions need; give account, partition, qos, constraint and time_min "
    "with --config 'slurm={account: abc}', or under `slurm` in profiles/slurm/values.yaml"
)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End Snakemake with the one line that helps, which a traceback through Snakemake would bury."""
    try:
        yield
    except CampaignError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; {NOT_INSTALLED}")
    except OSError as error:
        sys.exit(f"error: {convert_os_error(error, Path.cwd())}")


def complete_config(workflow: Any, config: Mapping[str, Any], default_results: str) -> dict[str, Any]:
    """Return Snakemake's configuration as `request_of` reads it. Raises ConfigError for options that the campaign would not use.

    Args:
        workflow: Snakemake's `workflow`.
        config: Snakemake's `config`.
        default_results: directory of all results where the configuration names none.
    """
    refuse_allocation_resources(workflow.resource_settings)
    launcher = read_launcher(workflow.resource_settings)
    options = restore_typed_texts(config, workflow.config_settings.config_args)
    options = replace_campaign_keys(options, [Path(file) for file in workflow.configfiles])
    results = options.get("results", default_results)
    if isinstance(results, str):
        results = add_module_prefix(workflow, results)
    return launcher | options | {"results": results}


def restore_typed_texts(config: Mapping[str, Any], entries: object) -> dict[str, Any]:
    """Return Snakemake's configuration with each value of `--config` as it was typed.

    Snakemake reads `version=535_104` as 535104, `version=010` as 10, and `results=007` as 7.

    Args:
        config: Snakemake's configuration.
        entries: KEY=VALUE of `--config`, Snakemake's `config_args`.
    """
    options = dict(config)
    for entry in entries if isinstance(entries, list | tuple) else ():
        key, _, text = str(entry).partition("=")
        value = config.get(key)
        # Another value is of a later `--config` of the same key, or of a workflow that has this one as a module.
        if isinstance(value, bool | int | float) and _snakemake_number(text, type(value)) == str(value):
            options[key] = text
    return options


def _snakemake_number(text: str, kind: type[bool | int | float]) -> str | None:
    """Return what Snakemake reads a text as, written in Python; None if the text is of another type."""
    if kind is bool:
        return text
    try:
        return str(kind(text))
    except ValueError:
        return None


def refuse_allocation_resources(settings: Any) -> None:
    """Raise ConfigError for resources with which Snakemake's own Slurm executor would request allocations.

    Args:
        settings: Snakemake's `resource_settings`.
    """
    for name in settings.default_resources or ():
        if name not in _SNAKEMAKE_DEFAULTS:
            raise ConfigError(f"--default-resources {name}: {_INSTEAD}")
    for rule, resources in (settings.overwrite_resources or {}).items():
        for name in resources:
            if name in _ALLOCATION_RESOURCES or name.startswith("slurm_"):
                raise ConfigError(f"--set-resources {rule}:{name}: {_INSTEAD}")


def read_launcher(settings: Any) -> dict[str, str]:
    """Return the launcher that the profile sets as a default resource. Raises ConfigError if an option has replaced it.

    Args:
        settings: Snakemake's `resource_settings`.
    """
    defaults = settings.default_resources
    if not defaults:
        return {}
    if "launcher" not in defaults:
        raise ConfigError(
            "--default-resources: it replaces that of the profile, which has the launcher; leave it out, or add launcher=slurm"
        )
    return {"launcher": str(defaults["launcher"].raw)}


def refuse_executor(workflow: Any) -> None:
    """Raise ConfigError for an executor that would submit Snakemake's own jobs."""
    if workflow.non_local_exec:
        raise ConfigError(
            "--executor: the campaign requests allocations itself, and Snakemake's jobs only wait for them; leave the option out "
            "and start with 'snakemake --profile slurm'"
        )


@cache
def warn_of_scheduler(scheduler: str) -> None:
    """Print once that a scheduler does not keep the order of the plan."""
    if scheduler != "campaign":
        print(
            f"note: --scheduler {scheduler} starts leases out of the order of the plan; 'snakemake --profile local' has the "
            "options for this machine, --profile slurm those for a cluster",
            file=sys.stderr,
        )


def set_limits(workflow: Any, limits: Mapping[str, int]) -> dict[str, int]:
    """Give the limits of resources to Snakemake's scheduler, and return those that hold: of `--resources`, and ours elsewhere.

    Two campaigns in one workflow share a resource of the same name; the larger limit counts.

    Args:
        workflow: Snakemake's `workflow`.
        limits: amount of each resource that the systems have.
    """
    limits_in_effect: dict[str, int] = {}
    for name, limit in limits.items():
        if name not in workflow.global_resources or _REGISTERED_LIMITS.get(name, limit) < limit:
            workflow.register_resource(name, limit)
            _REGISTERED_LIMITS[name] = limit
        limits_in_effect[name] = limit if name in _REGISTERED_LIMITS else int(workflow.global_resources[name].value)
    return limits_in_effect


_REGISTERED_LIMITS: dict[str, int] = {}
"""Limits that `--resources` did not give."""


def build_command_function(workflow: Any) -> str:
    """Return a shell function `campaign` that runs the code of this package."""
    package, python = ROOT / "workflow", [sys.executable]
    if workflow.deployment_settings.deployment_method and package.joinpath("campaign").is_dir():
        # The Python of --sdm conda or apptainer does not have the package.
        python = ["env", f"PYTHONPATH={package}", "python"]
    command = shlex.join([*python, "-P", "-m", "campaign.cli"])
    command = command.replace("{", "{{").replace("}", "}}")  # Snakemake formats a prefix.
    return f'campaign() ( exec {command} "$@" ); '


def is_target(workflow: Any, rule: str) -> bool:
    """Return whether a rule is a target or a value of `--until`; in a workflow with this one as a module, it may have a prefix."""
    targets = {*workflow.dag_settings.targets, *workflow.dag_settings.until}
    return any(name == rule or name.endswith(f"_{rule}") for name in targets)


def add_module_prefix(workflow: Any, path: str) -> str:
    """Return a path with the `prefix:` of the module, if it has one.

    The path is then absolute: commands find it in documents, and Snakemake adds no prefix to an absolute path.
    """
    prefixed_path: str = workflow.modifier.path_modifier.replace_prefix(path)
    return path if prefixed_path == path else str(Path(prefixed_path).resolve())


def replace_campaign_keys(config: Mapping[str, Any], configfiles: Sequence[Path]) -> dict[str, Any]:
    """Return Snakemake's configuration with `campaign: PATH` instead of the keys of a campaign file that is one of the configfiles.

    Raises ConfigError for keys of a campaign that are in no file, or that --config or another file has changed.
    """
    # A version may take the place of the file's.
    keys = [key for key in config if key in CampaignFile.model_fields and key != "version"]
    rest = {key: value for key, value in config.items() if key not in keys}
    if not keys:
        return rest
    for path in reversed(configfiles):
        document = read_yaml(path).data
        if {"configurations", "axes"} <= document.keys():
            break
    else:
        raise ConfigError(
            f"--config {keys[0]}: belongs in a campaign file; give the file with --configfile FILE or --config campaign=FILE"
        )
    changed_keys = [key for key in keys if config[key] != document.get(key)]
    if changed_keys:
        raise ConfigError(
            f"--config {changed_keys[0]}: differs from {path}, and only the file counts; change it there, or copy the file"
        )
    # The campaign that a config file names gives way.
    campaigns = {read_yaml(other).data.get("campaign") for other in configfiles if other != path}
    if "campaign" in rest and rest["campaign"] not in campaigns:
        raise ConfigError(f"--config campaign={rest['campaign']}: {path} is a campaign too; give one of the two")
    return {**rest, "campaign": os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)}
