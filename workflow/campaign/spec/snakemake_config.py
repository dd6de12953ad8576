"""Completion of Snakemake's configuration, and rejection of options that the campaign would ignore."""

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

INSTALL_HINT = "install the workflow's package into Snakemake's environment, with 'pip install .' in a checkout"
_SNAKEMAKE_DEFAULTS = ("launcher", "tmpdir", "mem", "mem_mb", "mem_mib", "disk", "disk_mb", "disk_mib")
"""Resources that `--default-resources` may contain: the launcher of the profile, and Snakemake's own, which no rule uses."""
_ALLOCATION_RESOURCES = (
    "runtime", "qos", "constraint", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "cpus_per_gpu", "tasks", "tasks_per_gpu", "ntasks",
    "nodes", "gres", "gpu", "gpus", "gpu_model", "clusters", "reservation", "mpi",
)  # fmt: skip
"""Resources of the Slurm executor of Snakemake. Further ones begin with `slurm_`."""
_SLURM_OPTIONS_HINT = (
    "the campaign requests allocations itself; set account, partition, qos, constraint and time_min with "
    "--config 'slurm={account: abc}', or under `slurm` in profiles/slurm/values.yaml"
)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End Snakemake with a one-line message instead of a traceback when the block raises an error of the campaign."""
    try:
        yield
    except CampaignError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; {INSTALL_HINT}")
    except OSError as error:
        sys.exit(f"error: {convert_os_error(error, Path.cwd())}")


def complete_config(workflow: Any, config: Mapping[str, Any], default_results: str) -> dict[str, Any]:
    """Return Snakemake's configuration in the form that plan requests use.

    Raises ConfigError for options that the campaign would ignore.

    Args:
        workflow: Snakemake's `workflow`.
        config: Snakemake's `config`.
        default_results: directory of all results, used if the configuration has none.
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
        entries: KEY=VALUE entries of `--config` (`config_args` of Snakemake).
    """
    options = dict(config)
    for entry in entries if isinstance(entries, list | tuple) else ():
        key, _, text = str(entry).partition("=")
        value = config.get(key)
        # A different value comes from a later `--config` of the same key, or from a workflow that uses this one as a module.
        if isinstance(value, bool | int | float) and _parse_like_snakemake(text, type(value)) == str(value):
            options[key] = text
    return options


def _parse_like_snakemake(text: str, kind: type[bool | int | float]) -> str | None:
    """Return Python's formatting of the value that Snakemake parses from a text, or None if the text has another type.

    Args:
        text: text of the value as it was typed.
        kind: type of the value in Snakemake's configuration.
    """
    if kind is bool:
        return text
    try:
        return str(kind(text))
    except ValueError:
        return None


def refuse_allocation_resources(settings: Any) -> None:
    """Raise ConfigError for resources that only Snakemake's own Slurm executor would use.

    Args:
        settings: Snakemake's `resource_settings`.
    """
    for name in settings.default_resources or ():
        if name not in _SNAKEMAKE_DEFAULTS:
            raise ConfigError(f"--default-resources {name}: {_SLURM_OPTIONS_HINT}")
    for rule, resources in (settings.overwrite_resources or {}).items():
        for name in resources:
            if name in _ALLOCATION_RESOURCES or name.startswith("slurm_"):
                raise ConfigError(f"--set-resources {rule}:{name}: {_SLURM_OPTIONS_HINT}")


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
            "--default-resources replaces the default resources of the profile, which set the launcher; remove the option, or "
            "add launcher=slurm to it"
        )
    return {"launcher": str(defaults["launcher"].raw)}


def refuse_executor(workflow: Any) -> None:
    """Raise ConfigError for an executor that would submit Snakemake's own jobs."""
    if workflow.non_local_exec:
        raise ConfigError(
            "--executor cannot be used, because the campaign requests allocations itself and Snakemake's jobs only wait for them; "
            "use 'snakemake --profile slurm' instead"
        )


@cache
def warn_about_scheduler(scheduler: str) -> None:
    """Print a warning, once, if Snakemake's scheduler does not keep the order of the plan."""
    if scheduler != "campaign":
        print(
            f"note: --scheduler {scheduler} does not start leases in the order of the plan; use 'snakemake --profile local' on "
            "this machine, or --profile slurm on a cluster",
            file=sys.stderr,
        )


def register_limits(workflow: Any, limits: Mapping[str, int]) -> dict[str, int]:
    """Register resource limits with Snakemake's scheduler, and return the limits in effect. `--resources` takes precedence.

    If two campaigns in one workflow use a resource of the same name, the larger limit applies.

    Args:
        workflow: Snakemake's `workflow`.
        limits: available amount by resource.
    """
    limits_in_effect: dict[str, int] = {}
    for name, limit in limits.items():
        if name not in workflow.global_resources or _REGISTERED_LIMITS.get(name, limit) < limit:
            workflow.register_resource(name, limit)
            _REGISTERED_LIMITS[name] = limit
        limits_in_effect[name] = limit if name in _REGISTERED_LIMITS else int(workflow.global_resources[name].value)
    return limits_in_effect


_REGISTERED_LIMITS: dict[str, int] = {}
"""Limits that were registered here, and not by `--resources`."""


def build_command_function(workflow: Any) -> str:
    """Return the definition of a shell function `campaign` that runs the code of this package."""
    package, python = ROOT / "workflow", [sys.executable]
    if workflow.deployment_settings.deployment_method and package.joinpath("campaign").is_dir():
        # Under --sdm conda or apptainer, another Python runs that does not have the package.
        python = ["env", f"PYTHONPATH={package}", "python"]
    command = shlex.join([*python, "-P", "-m", "campaign.cli"])
    command = command.replace("{", "{{").replace("}", "}}")  # Snakemake formats a prefix.
    return f'campaign() ( exec {command} "$@" ); '


def is_target(workflow: Any, rule: str) -> bool:
    """Return True if a rule is a target or a value of `--until`, possibly with the prefix of a module."""
    targets = {*workflow.dag_settings.targets, *workflow.dag_settings.until}
    return any(name == rule or name.endswith(f"_{rule}") for name in targets)


def add_module_prefix(workflow: Any, path: str) -> str:
    """Return a path with the `prefix:` of the module, or unchanged if there is no prefix.

    A prefixed path is made absolute, because documents contain it, and Snakemake adds no second prefix to an absolute path.
    """
    prefixed_path: str = workflow.modifier.path_modifier.replace_prefix(path)
    return path if prefixed_path == path else str(Path(prefixed_path).resolve())


def replace_campaign_keys(config: Mapping[str, Any], configfiles: Sequence[Path]) -> dict[str, Any]:
    """Replace the keys of a campaign file among the configfiles by `campaign: PATH`, and return the configuration.

    Raises ConfigError for campaign keys that are in none of the files, or that --config or another file changes.

    Args:
        config: Snakemake's configuration.
        configfiles: files of `--configfile` and `configfile:`.
    """
    # `version` may differ from the campaign file.
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
            f"--config {keys[0]}: this key belongs in a campaign file; give the file by --configfile FILE or --config campaign=FILE"
        )
    changed_keys = [key for key in keys if config[key] != document.get(key)]
    if changed_keys:
        raise ConfigError(
            f"--config {changed_keys[0]}: the value differs from {path}, but only the file is used; change the file or a copy of it"
        )
    # A campaign that is named in another config file is overridden.
    campaigns = {read_yaml(file).data.get("campaign") for file in configfiles if file != path}
    if "campaign" in rest and rest["campaign"] not in campaigns:
        raise ConfigError(f"--config campaign={rest['campaign']}: {path} is a campaign as well; give only one of them")
    return {**rest, "campaign": os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)}
