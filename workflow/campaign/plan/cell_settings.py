"""Settings of cells: the protocol with the overrides that a cell's axis values select. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from campaign.config.resolve import Campaign
from campaign.documents.cell import Settings
from campaign.documents.expression import Expression, parse
from campaign.documents.run_numbers import MOST
from campaign.errors import ConfigError
from campaign.workloads.protocol import Workload
from campaign.workloads.steady_warmup import CHUNKS, FEWEST_STEPS, least_of


class SettingsOf:
    """Gives the settings of a cell from its axis values and its workload; ConfigError for those that cannot be followed."""

    def __init__(self, campaign: Campaign, names: Collection[str]) -> None:
        protocol = campaign.protocol
        self.place = campaign.place
        self.left_as_it_is: dict[str, str] = {}
        self.default = Settings(
            warmup_steps=protocol.warmup_steps,
            warmup_steps_max=protocol.warmup_steps_max,
            measured_steps=protocol.measured_steps,
            repetitions=protocol.repetitions,
            repetitions_min=protocol.repetitions_min,
            compositions=protocol.compositions,
            target_half_width_pct=protocol.target_half_width_pct,
            seed=protocol.seed,
            time_limit_s=protocol.time_limit_s,
        )
        fields = set(Settings.__dataclass_fields__) - {"seed", "composition"}
        self.overrides: list[tuple[Expression, dict[str, Any]]] = [
            (parse(override.when, names, campaign.place("overrides", index, "when")), changes)
            for index, override in enumerate(campaign.file.overrides)
            if (changes := override.model_dump(include=fields, exclude_none=True))
        ]

    def __call__(self, axes: Mapping[str, Any], workload: Workload) -> Settings:
        settings = self.default
        for when, changes in self.overrides:
            if when(axes):
                settings = replace(settings, **changes)
        if settings.target_half_width_pct is not None and settings.repetitions_min > settings.repetitions:
            raise ConfigError(
                f"{self.place('protocol', 'repetitions_min')}: {settings.repetitions_min} are more than the most repetitions "
                f"({settings.repetitions}); lower repetitions_min, or raise repetitions"
            )
        if settings.repetitions > MOST * settings.compositions:
            raise ConfigError(
                f"{self.place('protocol', 'repetitions')}: {settings.repetitions} repetitions in {settings.compositions} "
                f"compositions; one composition has at most {MOST} runs of a cell; lower repetitions, or raise compositions"
            )
        longest, least = settings.warmup_steps_max, least_of(settings.warmup_steps)
        if longest is None:
            return settings
        if not workload.lengthens_warmup:
            self.left_as_it_is.setdefault(workload.name, workload.kind)
            return replace(settings, warmup_steps_max=None)
        if longest < least:
            raise ConfigError(
                f"{self.place('protocol', 'warmup_steps_max')}: warmup_steps_max is {longest}; whether steps are "
                f"steady is seen after {least} at the earliest ({CHUNKS} times warmup_steps, or {FEWEST_STEPS}); "
                f"raise it to {least} or more, or lower warmup_steps"
            )
        return settings

    def notes(self, workloads: Collection[str]) -> Iterator[str]:
        """What the settings ask of these workloads in vain."""
        for name in [name for name in self.left_as_it_is if name in workloads]:
            kind = self.left_as_it_is[name]
            yield (
                f"warmup_steps_max does not apply to workload '{name}': a {kind} workload makes its own warm-up, which cannot be "
                "lengthened from outside"
            )
