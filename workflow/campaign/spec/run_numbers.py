"""Numbers of runs. A run is the n-th run of its cell in one composition of the configuration.

Its number is `(composition - 1) * 1000 + n`, where both count from 1. So recorded runs keep their numbers when compositions or
repetitions are added, and the first composition has the runs 1, 2, 3, and so on.
"""

from __future__ import annotations

from dataclasses import replace

from campaign.spec.cell import Settings

RunKey = tuple[str, int]
"""Id of a cell and number of one of its runs."""
BLOCK_ORDERS = ("blocks", "random-blocks")
"""Orders of leases (`protocol.lease_order`) that compose every configuration once before any is composed again."""
MAX_RUNS_PER_COMPOSITION = 999
"""Maximum number of runs of a cell in one composition, and of compositions of a configuration."""


def compute_run_number(composition: int, number: int) -> int:
    """Return the run number (`Record.repetition`) of the n-th run of a cell in a composition. Both count from 1."""
    if not (1 <= composition <= MAX_RUNS_PER_COMPOSITION and 1 <= number <= MAX_RUNS_PER_COMPOSITION):
        raise ValueError(
            f"composition {composition}, run {number}: both must be between 1 and {MAX_RUNS_PER_COMPOSITION}"
        )
    return (composition - 1) * (MAX_RUNS_PER_COMPOSITION + 1) + number


def get_composition_number(run: int) -> int:
    """Return the number of a run's composition, from 1."""
    return run // (MAX_RUNS_PER_COMPOSITION + 1) + 1


def get_number_in_composition(run: int) -> int:
    """Return the number of a run, from 1, among the runs of its cell in the composition.

    Runs with equal numbers in a composition are a block.
    """
    return run % (MAX_RUNS_PER_COMPOSITION + 1)


def format_run_number(run: int) -> str:
    """Format the number of a run for readers, e.g. 'composition 2, run 1' for 1001."""
    return f"composition {get_composition_number(run)}, run {get_number_in_composition(run)}"


def list_run_numbers(settings: Settings) -> tuple[int, ...]:
    """Return the numbers of the planned runs of a cell in order. Its repetitions are distributed over the compositions in turn.

    If the settings are for one composition, only its runs are returned.
    """
    k = settings.compositions
    if settings.composition is not None:
        run_count = len(range(settings.composition - 1, settings.repetitions, k))
        return tuple(compute_run_number(settings.composition, number) for number in range(1, run_count + 1))
    return tuple(compute_run_number(place % k + 1, place // k + 1) for place in range(settings.repetitions))


def list_compositions(settings: Settings) -> range:
    """Return the numbers of the compositions that have runs of a cell, which are at most as many as its repetitions."""
    if settings.composition is not None:
        return range(settings.composition, settings.composition + 1)
    return range(1, min(settings.compositions, settings.repetitions) + 1)


def with_composition(settings: Settings, composition: int) -> Settings:
    """Return the settings of a cell for one of its compositions."""
    return replace(settings, composition=composition)


def without_composition(settings: Settings) -> Settings:
    """Return the settings of a cell for all its compositions."""
    return replace(settings, composition=None)
