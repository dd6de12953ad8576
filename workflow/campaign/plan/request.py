"""Request for a plan. Each field defines its names in commands, in Snakemake's `--config` and in the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from campaign.common.errors import ConfigError
from campaign.common.files import parse_json
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.campaign.resolve_slurm_options import parse_slurm_options
from campaign.spec.system_file import SlurmOptions

DEFAULT_CAMPAIGN = "config/campaign.yaml"
DEFAULT_RESULTS = "results"
Group = Literal["selection", "costs", "allocations", ""]


@dataclass(frozen=True)
class PlanOption:
    """Definition of a field of `PlanRequest` as a command option and as a key of `--config`."""

    meaning: str
    """Help of commands and text of the documentation."""
    read: Callable[[Any], Any]
    """Function that converts a text, or the value that YAML reads from it. It raises ConfigError for an invalid value."""
    group: Group = ""
    """Group of commands that have the option: they select cells, forecast costs, or request allocations. '' means no command."""
    flag: str = ""
    """Name of the command option without dashes, if it differs from the name of the field."""
    key: str = ""
    """Key of Snakemake's `--config`, if it differs from the name of the field."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    repeated: bool = False
    key_meaning: str = ""
    """Text of the documentation for the key, if it differs from the meaning of the command option."""


def _parse_path(value: object) -> Path:
    return Path(str(value))


def _parse_text(value: object) -> str | None:
    return str(value) if value not in (None, "") else None


def _parse_launcher(value: object) -> str:
    if value not in ("local", "slurm"):
        raise ConfigError(f"--config launcher: '{value}' is not allowed; use local or slurm")
    return str(value)


def _parse_slurm(value: object) -> SlurmOptions:
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise ConfigError(f"--slurm: '{value}' is not JSON ({error})") from error
    return parse_slurm_options(value)


def _is_no(value: object) -> bool:
    """Return whether a switch is off. The value `yes` keeps the campaign's setting."""
    if str(value).lower() in ("yes", "true"):
        return False
    if str(value).lower() in ("no", "false"):
        return True
    raise ConfigError(f"--config skip_implied: '{value}' is not allowed; use yes or no")


def _parse_goal(value: object) -> str | None:
    if value not in (None, "", "best"):
        raise ConfigError(f"--until: '{value}' is not allowed; the only value is best")
    return str(value) if value else None


def _parse_paths(value: object) -> tuple[Path, ...]:
    """Parse one path, or several as a list or separated by commas."""
    texts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(Path(str(text).strip()) for text in texts if str(text).strip())


@dataclass(frozen=True)
class PlanRequest:
    """Request for a plan: the campaign, the selection of its cells, and options of the measurement.

    To add an option, add a field. The commands, the keys of `--config` and the documentation follow.
    """

    campaign: Annotated[Path, PlanOption("Path of the campaign file. Default: `config/campaign.yaml`.", _parse_path)]
    results: Annotated[
        Path,
        PlanOption(
            "Directory of all results. Default: `results`. Campaigns on the same system share state in it.", _parse_path
        ),
    ]
    where: Annotated[
        str | None,
        PlanOption(
            "Select cells, e.g. 'batch >= 8'. \"host == 'host3'\" selects cells with a run on that host.",
            _parse_text, "selection", metavar="EXPRESSION",
        ),
    ] = None  # fmt: skip
    version: Annotated[
        str | None,
        PlanOption(
            "Label of the installed software, instead of the campaign's `version`; `none` removes the label.",
            _parse_text, "selection", metavar="LABEL",
        ),
    ] = None  # fmt: skip
    without_hosts: Annotated[
        str | None,
        PlanOption(
            "Exclude hosts, e.g. 'host3' or 'host[3-4],host8'. Configurations that no longer fit are skipped and listed.",
            _parse_text, "selection", "without-hosts", metavar="HOSTS",
        ),
    ] = None  # fmt: skip
    archive: Annotated[Path | None, PlanOption("Path of an archive. Only its report is written.", _parse_path)] = None
    launcher: Annotated[
        str | None,
        PlanOption(
            "Launcher that starts runs. Default: the launcher of the profile, or else of the system.",
            _parse_launcher, "allocations", choices=("local", "slurm"),
        ),
    ] = None  # fmt: skip
    slurm: Annotated[
        SlurmOptions,
        PlanOption(
            'Options of the allocations, such as \'{"partition": "gpu"}\'.', _parse_slurm, "allocations", metavar="JSON"
        ),
    ] = field(default_factory=SlurmOptions)
    run_implied: Annotated[
        bool,
        PlanOption(
            "Also run batches that are skipped because a smaller batch ran out of memory.",
            _is_no, "selection", "run-implied", "skip_implied",
            key_meaning="`no` also runs batches that are skipped because a smaller batch ran out of memory.",
        ),
    ] = False  # fmt: skip
    until: Annotated[
        str | None,
        PlanOption(
            "Race for the best configuration: each block composes only those that may still be the best, until one is known.",
            _parse_goal, "costs", choices=("best",),
            key_meaning="`best` runs only the next block of a race; `campaign run --until best` runs all blocks in turn.",
        ),
    ] = None  # fmt: skip
    learn_from: Annotated[
        tuple[Path, ...],
        PlanOption(
            "Additional archive or results directory to learn durations from. May be repeated.",
            _parse_paths, "costs", "learn-from", repeated=True,
            key_meaning="Additional archives or results directories to learn durations from, separated by commas.",
        ),
    ] = ()  # fmt: skip

    def to_arguments(self) -> list[str]:
        """Return the request as arguments of `campaign plan`."""
        arguments = [str(self.campaign), f"--results={self.results}"]
        for name, value in self._list_options():
            flag = f"--{OPTIONS[name].flag or name}"
            if OPTIONS[name].group:
                values = value if OPTIONS[name].repeated else [_format_value(value)]
                arguments += [flag] if value is True else [f"{flag}={text}" for text in values]
        return arguments

    def to_snakemake_config(self) -> list[str]:
        """Return the request as KEY=VALUE pairs of Snakemake's `--config`."""
        texts = {
            name: "no" if value is True
            else ",".join(map(str, value)) if isinstance(value, tuple)
            else _protect_quotes(value) if isinstance(value, str)
            else _format_value(value)
            for name, value in self._list_options()
        }  # fmt: skip
        pairs = [f"{OPTIONS[name].key or name}={text}" for name, text in texts.items()]
        return [f"campaign={self.campaign}", f"results={self.results}", *pairs]

    def _list_options(self) -> list[tuple[str, Any]]:
        """Return the name and value of each option of the request, except the campaign and the results directory."""
        values = {option.name: getattr(self, option.name) for option in fields(self)[2:]}
        return [(name, value) for name, value in values.items() if value and value != SlurmOptions()]

    def load_campaign(self) -> Campaign:
        """Load the campaign with the requested options."""
        implied = self.run_implied
        results, version = self.results, self.version
        full_campaign = load_campaign(
            self.campaign, self.launcher, self.slurm, run_implied=implied, results=results, version=version
        )
        return full_campaign.without_hosts(self.without_hosts) if self.without_hosts else full_campaign


OPTIONS: Mapping[str, PlanOption] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(PlanRequest, include_extras=True).items()
}
"""Option of each field of `PlanRequest`, by the field's name."""


def request_from_config(config: Mapping[str, Any]) -> PlanRequest:
    """Convert Snakemake's configuration to a PlanRequest.

    Raises ConfigError for an unknown key or an invalid value.
    """
    names = {option.key or name: name for name, option in OPTIONS.items()}
    for key in config:
        if key not in names:
            key_list = "; ".join(f"{name}: {words.removesuffix('.')}" for name, words in list_key_meanings())
            raise ConfigError(f"--config {key}: there is no such key; the keys are: {key_list}")
    for key, value in config.items():
        if isinstance(value, int | float) and OPTIONS[names[key]].read in (_parse_path, _parse_paths, _parse_text):
            raise ConfigError(
                f"{key}: YAML reads the value in the config file as {value!r}, a number or truth value, which may differ from the "
                "text in the file; put the value in quotes"
            )
    read = {names[key]: OPTIONS[names[key]].read(value) for key, value in config.items() if value is not None}
    return PlanRequest(**{"campaign": Path(DEFAULT_CAMPAIGN), "results": Path(DEFAULT_RESULTS), **read})


def list_key_meanings() -> list[tuple[str, str]]:
    """List every key of `--config` with its meaning."""
    return [(option.key or name, option.key_meaning or option.meaning) for name, option in OPTIONS.items()]


def _format_value(value: object) -> str:
    return value.model_dump_json(exclude_defaults=True) if isinstance(value, SlurmOptions) else str(value)


def _protect_quotes(expression: str) -> str:
    """Return an expression in a form that Snakemake leaves unchanged.

    Snakemake removes quotes from both ends of a value.
    """
    text = expression.strip()
    return f"({text})" if text[-1:] in ("'", '"') or text[:1] in ("'", '"') else text
