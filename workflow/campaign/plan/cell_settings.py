"""Settings of cells: the protocol and the overrides that apply to a cell's axis values. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Settings
from campaign.spec.expression import Expression, parse_expression
from campaign.spec.run_numbers import MAX_RUNS_PER_COMPOSITION
from campaign.workloads.protocol import Workload
from campaign.workloads.steady_warmup import MIN_CHUNK_STEPS, MIN_CHUNKS, min_warmup_steps


class CellSettings:
    """Settings of a cell, computed from its axis values and its workload.

    A call raises ConfigError if the settings contradict each other.
    """

    def __init__(self, campaign: Campaign, names: Collection[str]) -> None:
        protocol = campaign.protocol
        self.format_location = campaign.format_location
        self.ineffective_keys: dict[tuple[str, str], str] = {}
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
            (parse_expression(override.when, names, campaign.format_location("overrides", index, "when")), changes)
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
                f"{self.format_location('protocol', 'repetitions_min')}: repetitions_min is {settings.repetitions_min}, but "
                f"repetitions is only {settings.repetitions}; lower repetitions_min, or raise repetitions"
            )
        if settings.repetitions > MAX_RUNS_PER_COMPOSITION * settings.compositions:
            raise ConfigError(
                f"{self.format_location('protocol', 'repetitions')}: {settings.repetitions} repetitions do not fit into "
                f"{settings.compositions} compositions, because a composition has at most {MAX_RUNS_PER_COMPOSITION} runs of a "
                "cell; lower repetitions, or raise compositions"
            )
        self._note_ineffective_keys(settings, workload)
        settings = fill_min_durations(settings, workload, kind)
        longest, shortest = settings.warmup_steps_max, min_warmup_steps(settings.warmup_steps)
        if longest is None:
            return settings
        if not workload.extends_warmup:
            return replace(settings, warmup_steps_max=None)
        if longest < shortest:
            raise ConfigError(
                f"{self.format_location('protocol', 'warmup_steps_max')}: warmup_steps_max is {longest}, but steady steps can only "
                f"be detected after {shortest} steps ({MIN_CHUNKS} times warmup_steps, or {MIN_CHUNK_STEPS}); raise it to "
                f"{shortest} or more, or lower warmup_steps"
            )
        return settings

    def _note_ineffective_keys(self, settings: Settings, workload: Workload) -> None:
        """Note the settings that have no effect for workloads of this kind."""
        applies = {
            "warmup_steps_max": workload.extends_warmup,
            "warmup_min_s": workload.supports_min_durations,
            "measured_min_s": workload.supports_min_durations,
        }
        for key, is_supported in applies.items():
            if getattr(settings, key) and not is_supported:
                self.ineffective_keys.setdefault((workload.name, key), workload.kind)

    def list_notes(self, workloads: Collection[str]) -> Iterator[str]:
        """Yield one note per setting that has no effect for one of these workloads."""
        for (name, key), kind in self.ineffective_keys.items():
            if name in workloads:
                yield f"{key} does not apply to workload '{name}': {_INEFFECTIVE_REASONS[key].format(kind=kind)}"


_INEFFECTIVE_REASONS = {
    "warmup_steps_max": "a {kind} workload controls its own warm-up, which cannot be extended from outside",
    "warmup_min_s": "a {kind} workload runs a fixed number of steps, however long they take",
    "measured_min_s": "a {kind} workload runs a fixed number of steps, however long they take",
}
_MIN_GPU_DURATION_S = 5.0
"""Default minimum duration on GPUs. Telemetry samples about once per second, and NVML's power is the mean of one second."""


def fill_min_durations(settings: Settings, workload: Workload, kind: AcceleratorKind) -> Settings:
    """Return the settings with the minimum durations (seconds) of warm-up and window for this kind of device."""
    if not workload.supports_min_durations:
        return replace(settings, warmup_min_s=None, measured_min_s=None)
    default = 0.0 if kind == "cpu" else _MIN_GPU_DURATION_S
    warmup_s, measured_s = (default if s is None else s for s in (settings.warmup_min_s, settings.measured_min_s))
    return replace(settings, warmup_min_s=warmup_s, measured_min_s=measured_s)
