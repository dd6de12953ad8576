"""What Slurm users say to Snakemake (`--default-resources slurm_account=..`), as options of the campaign's allocations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    options = _options("--default-resources", meant)
    for rule, resources in (settings.overwrite_resources or {}).items():
        options |= _of_rule(rule, {name: resource.raw for name, resource in resources.items()})
    # A profile's configfile gives way to --configfile on the command line, and its default resources to --default-resources.
    replaced = any(word.startswith("--default-res") for word in arguments)
    of_slurm = replaced and _profile_name(arguments, environment) == "slurm"
    launcher = defaults.get("launcher", "slurm" if of_slurm else None)
    found = {**({"launcher": launcher} if launcher else {}), **config}
    return {**found, "slurm": {**(found.get("slurm") or {}), **options}} if options else found


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
            "additional under `slurm` in slurm/values.yaml or the system file"
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


def _profile_name(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Last part of the profile's path; empty for none."""
    words = list(arguments)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option == "--profile":
            return (value if equals else after).rstrip("/").rpartition("/")[2]
    return environment.get("SNAKEMAKE_PROFILE", "").rstrip("/").rpartition("/")[2]
