"""Snakemake's configuration before it is read: a campaign file given with `--configfile` as it is, and what Slurm users say with
`--default-resources slurm_account=..` as options of the campaign's allocations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.config.campaign_file import CampaignFile
from campaign.config.yaml_file import read_yaml
from campaign.errors import ConfigError

_HONOURED = {
    "slurm_account": "account",
    "slurm_partition": "partition",
    "qos": "qos",
    "slurm_qos": "qos",
    "constraint": "constraint",
    "runtime": "time_min",
}
"""Resource of Snakemake's Slurm executor -> key under `slurm`."""
_REFUSED = (
    "slurm_extra", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "cpus_per_gpu", "tasks", "tasks_per_gpu", "ntasks", "nodes", "gres",
    "gpu", "gpus", "gpu_model", "clusters", "reservation", "mpi",
)  # fmt: skip
_MEASURE = "measure"
"""The rule whose jobs are allocations."""


def with_typed_texts(config: Mapping[str, Any], entries: object) -> dict[str, Any]:
    """Return Snakemake's configuration with each value of `--config` as it was typed.

    Snakemake reads `version=535_104` as 535104, `version=010` as 10, and `results=007` as 7.

    Args:
        config: Snakemake's configuration.
        entries: KEY=VALUE of `--config`, Snakemake's `config_args`.
    """
    found = dict(config)
    for entry in entries if isinstance(entries, list | tuple) else ():
        key, _, text = str(entry).partition("=")
        value = config.get(key)
        # Another value is of a later `--config` of the same key, or of a workflow that has this one as a module.
        if isinstance(value, bool | int | float) and _snakemake_number(text, type(value)) == str(value):
            found[key] = text
    return found


def _snakemake_number(text: str, kind: type[bool | int | float]) -> str | None:
    """Return what Snakemake reads a text as, written in Python; None if the text is of another type."""
    if kind is bool:
        return text
    try:
        return str(kind(text))
    except ValueError:
        return None


def with_resources(
    settings: Any, arguments: Sequence[str], environment: Mapping[str, str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Snakemake's configuration with the launcher of the profile, and the Slurm options that its resource options give.

    settings: Snakemake's `resource_settings`. ConfigError for what would be ignored.
    """
    _refuse_executor(arguments)
    defaults = {name: resource.raw for name, resource in (settings.default_resources or {}).items()}
    given = _given_defaults(arguments)
    # Snakemake has formulas of its own for some.
    meant = {
        name: value for name, value in defaults.items() if name in _HONOURED or name in given or str(value).isdecimal()
    }
    options = _options("--default-resources", _typed_resources(meant, arguments))
    for rule, resources in (settings.overwrite_resources or {}).items():
        typed = _typed_resources({name: resource.raw for name, resource in resources.items()}, arguments, f"{rule}:")
        options |= _of_rule(rule, typed)
    # A profile's configfile gives way to --configfile on the command line, and its default resources to --default-resources.
    replaced = any(word.startswith("--default-res") for word in arguments)
    of_slurm = replaced and "slurm" in profile_names(arguments, environment)
    launcher = defaults.get("launcher", "slurm" if of_slurm else None)
    found = {**({"launcher": launcher} if launcher else {}), **config}
    return {**found, "slurm": {**(found.get("slurm") or {}), **options}} if options else found


def with_limits(workflow: Any, limits: Mapping[str, int]) -> dict[str, int]:
    """Limits of resources, which Snakemake's scheduler has from now on: the user's (`--resources hosts=2`), and ours elsewhere.

    workflow: Snakemake's. Two campaigns in one workflow share a resource of the same name; the larger limit counts.
    """
    given: dict[str, int] = {}
    for name, limit in limits.items():
        if name not in workflow.global_resources or _REGISTERED.get(name, limit) < limit:
            workflow.register_resource(name, limit)
            _REGISTERED[name] = limit
        given[name] = limit if name in _REGISTERED else int(workflow.global_resources[name].value)
    return given


_REGISTERED: dict[str, int] = {}
"""Limits that are not the user's."""


def _typed_resources(resources: Mapping[str, object], arguments: Sequence[str], prefix: str = "") -> dict[str, object]:
    """Return resources with each number as the command line writes it: Snakemake reads `slurm_account=010` as 10.

    Args:
        resources: name and value of each resource.
        arguments: command line.
        prefix: `RULE:` where the resources are those of a rule.
    """
    typed = dict(resources)
    for word in arguments:
        key, _, text = word.removeprefix("--default-resources=").removeprefix("--set-resources=").partition("=")
        name = key.removeprefix(prefix)
        value = resources.get(name)
        if key == prefix + name and isinstance(value, int) and _snakemake_number(text, int) == str(value):
            typed[name] = text
    return typed


def _of_rule(rule: str, resources: Mapping[str, object]) -> dict[str, Any]:
    # `use rule * from .. as one_*` puts a name before it.
    if rule == _MEASURE or rule.endswith(f"_{_MEASURE}"):
        return _options(f"--set-resources {rule}:", resources)
    if ignored := [name for name in resources if name in _HONOURED or name in _REFUSED]:
        raise ConfigError(
            f"--set-resources {rule}:{ignored[0]}: only '{_MEASURE}' uses allocations; leave it out, or set it for that rule"
        )
    return {}


def _options(where: str, resources: Mapping[str, object]) -> dict[str, Any]:
    """Keys under `slurm`."""
    if refused := [name for name in resources if name in _REFUSED]:
        raise ConfigError(
            f"{where} {refused[0]}: allocations follow from the composition; leave it out, or set memory_gib, cpus_per_device or "
            "additional under `slurm` in profiles/slurm/values.yaml or the system file"
        )
    found: dict[str, Any] = {_HONOURED[name]: str(value) for name, value in resources.items() if name in _HONOURED}
    if "time_min" in found:
        if not found["time_min"].isdecimal():
            raise ConfigError(f"{where} runtime: '{found['time_min']}' is not a number of minutes, such as 90")
        found["time_min"] = int(found["time_min"])
    return found


def _given_defaults(arguments: Sequence[str]) -> list[str]:
    """Names of the resources that `--default-resources` on a command line gives."""
    names: list[str] = []
    words = iter(arguments)
    taking = False
    for word in words:
        option, equals, first = word.partition("=")
        if option in ("--default-resources", "--default-res"):
            taking = True
            names += [first.partition("=")[0]] if equals else []
        elif word.startswith("-"):
            taking = False
        elif taking:
            names.append(option)
    return names


def _refuse_executor(arguments: Iterable[str]) -> None:
    """ConfigError for an executor that would submit Snakemake's own jobs."""
    words = list(arguments)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        executor = value if equals else after
        if option in ("--executor", "-e") and executor not in ("local", "dryrun", "touch"):
            raise ConfigError(
                f"--executor {executor}: the campaign requests allocations itself, and Snakemake's jobs only wait for them; "
                "leave it out and start with 'snakemake --profile slurm'"
            )


def profile_names(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Last part of the path of each profile that the command line or else the environment names."""
    paths: list[str] = []
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in ("--profile", "--workflow-profile"):
            paths.append(value if equals else after)
    return [Path(path).name for path in paths or [environment.get("SNAKEMAKE_PROFILE", "")] if path]


def with_campaign_path(config: Mapping[str, Any], configfiles: Sequence[Path]) -> dict[str, Any]:
    """Snakemake's configuration, with `campaign: PATH` instead of the keys of a campaign file that is one of the configfiles.

    ConfigError for keys of a campaign that are in no file, or that --config or another file has changed.
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
    changed = [key for key in keys if config[key] != document.get(key)]
    if changed:
        raise ConfigError(
            f"--config {changed[0]}: differs from {path}, and only the file counts; change it there, or copy the file"
        )
    # The config file of a deployed copy names a campaign, which gives way.
    named = {read_yaml(other).data.get("campaign") for other in configfiles if other != path}
    if "campaign" in rest and rest["campaign"] not in named:
        raise ConfigError(f"--config campaign={rest['campaign']}: {path} is a campaign too; give one of the two")
    return {**rest, "campaign": os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)}
