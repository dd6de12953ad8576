"""Settings of cells: the protocol with the overrides that a cell's axis values select. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Settings
from campaign.spec.expression import Expression, parse
from campaign.spec.run_numbers import MOST
from campaign.workloads.protocol import Workload
from campaign.workloads.steady_warmup import CHUNKS, FEWEST_STEPS, least_of


class SettingsOf:
    """Settings of a cell, computed from its axis values and its workload.

    A call raises ConfigError if the settings contradict each other.
    """

    def __init__(self, campaign: Campaign, names: Collection[str]) -> None:
        protocol = campaign.protocol
        self.place = campaign.place
        self.left_as_it_is: dict[tuple[str, str], str] = {}
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
            warmup_min_s=protocol.warmup_min_s,
            measured_min_s=protocol.measured_min_s,
        )
        fields = set(Settings.__dataclass_fields__) - {"seed", "composition"}
        self.overrides: list[tuple[Expression, dict[str, Any]]] = [
            (parse(override.when, names, campaign.place("overrides", index, "when")), changes)
            for index, override in enumerate(campaign.file.overrides)
            if (changes := override.model_dump(include=fields, exclude_none=True))
        ]

    def __call__(self, axes: Mapping[str, Any], workload: Workload, kind: AcceleratorKind) -> Settings:
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
        self._note_vain(settings, workload)
        settings = in_seconds(settings, workload, kind)
        longest, least = settings.warmup_steps_max, least_of(settings.warmup_steps)
        if longest is None:
            return settings
        if not workload.lengthens_warmup:
            return replace(settings, warmup_steps_max=None)
        if longest < least:
            raise ConfigError(
                f"{self.place('protocol', 'warmup_steps_max')}: warmup_steps_max is {longest}; whether steps are "
                f"steady is seen after {least} at the earliest ({CHUNKS} times warmup_steps, or {FEWEST_STEPS}); "
                f"raise it to {least} or more, or lower warmup_steps"
            )
        return settings

    def _note_vain(self, settings: Settings, workload: Workload) -> None:
        """Note the settings that have no effect for workloads of this kind."""
        applies = {
            "warmup_steps_max": workload.lengthens_warmup,
            "warmup_min_s": workload.steps_by_time,
            "measured_min_s": workload.steps_by_time,
        }
        for key, does in applies.items():
            if getattr(settings, key) and not does:
                self.left_as_it_is.setdefault((workload.name, key), workload.kind)

    def notes(self, workloads: Collection[str]) -> Iterator[str]:
        """Yield one note per setting that has no effect for one of these workloads."""
        for (name, key), kind in self.left_as_it_is.items():
            if name in workloads:
                yield f"{key} does not apply to workload '{name}': {_WHY_VAIN[key].format(kind=kind)}"


_WHY_VAIN = {
    "warmup_steps_max": "a {kind} workload makes its own warm-up, which cannot be lengthened from outside",
    "warmup_min_s": "a {kind} workload makes as many steps as it is told, however long they take",
    "measured_min_s": "a {kind} workload makes as many steps as it is told, however long they take",
}
_LEAST_ON_GPUS_S = 5.0
"""Default minimum duration on GPUs. Telemetry samples about once per second, and NVML's power is the mean of one second."""


def in_seconds(settings: Settings, workload: Workload, kind: AcceleratorKind) -> Settings:
    """Return the settings with the minimum durations (seconds) of warm-up and window for this kind of device."""
    if not workload.steps_by_time:
        return replace(settings, warmup_min_s=None, measured_min_s=None)
    default = 0.0 if kind == "cpu" else _LEAST_ON_GPUS_S
    warmup_s, measured_s = (default if s is None else s for s in (settings.warmup_min_s, settings.measured_min_s))
    return replace(settings, warmup_min_s=warmup_s, measured_min_s=measured_s)
