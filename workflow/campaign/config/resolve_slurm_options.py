"""Options of an allocation: from the system file, its overrides, and what a profile or the command line gives. Pure."""

from __future__ import annotations

from pydantic import ValidationError

from campaign.config.system_file import SlurmOptions, SystemFile
from campaign.documents.cell import SHAPE_AXES, Configuration
from campaign.documents.expression import parse
from campaign.errors import ConfigError, first_problem


def given_options(given: object) -> SlurmOptions:
    """Options that a profile or `--config slurm={...}` gives; ConfigError names the key and what is allowed."""
    try:
        return SlurmOptions.model_validate(given or {})
    except ValidationError as error:
        known = ", ".join(SlurmOptions.model_fields)
        raise ConfigError(f"--config slurm: {first_problem(error, str(given))}; there are: {known}") from error


def options_of(system: SystemFile, configuration: Configuration, given: SlurmOptions) -> SlurmOptions:
    """Options of one configuration: the system's, those of the overrides that select it, and the given ones; the last one wins."""
    values = {name: getattr(system.slurm, name) for name in SlurmOptions.model_fields}
    axes = configuration.axes()
    chosen: list[SlurmOptions] = [
        override
        for override in system.slurm.overrides
        if parse(override.when, frozenset(SHAPE_AXES), f"system {system.name}: slurm: overrides")(axes)
    ]
    for options in (*chosen, given):
        for name in SlurmOptions.model_fields:
            value = getattr(options, name)
            if name == "additional":
                values[name] = {**values[name], **value}
            elif value is not None:
                values[name] = value
    return SlurmOptions(**values)
