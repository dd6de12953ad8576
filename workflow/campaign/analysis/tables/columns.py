"""Columns of all tables, with their order, type and meaning (also for the reference documentation)."""

from __future__ import annotations

from collections.abc import Mapping

from campaign.spec.metric import MEASURED_BY_CAMPAIGN

ColumnMeanings = dict[str, tuple[str, str]]
"""Column -> type and meaning."""


def _parse_columns(text: str) -> dict[str, tuple[str, str]]:
    """Parse columns from lines 'name kind meaning'; an indented line continues the meaning."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    return {name: (kind, means) for name, kind, means in (line.split(" ", 2) for line in lines)}


_CELL: ColumnMeanings = _parse_columns("""
configuration text name of the configuration, the requested hardware
system text name of the system that it is on
hosts count hosts of the configuration
devices_per_host count devices composed onto each host
local_devices_per_host count of these, the host's own; the others come from the fabric's pool
devices_used count devices of each host that a run uses
ranks count devices that a run uses over all hosts, one rank each
devices count devices composed over all hosts
device text device model; with the system where the campaign has several
attach text local, hybrid or fabric; ending in -p2p where peer-to-peer through the fabric is on
storage text local, nvme or fabric-nvme
workload text name of the workload
batch count samples a device takes in one step
batch_global count batch times ranks
precision text number format
version text label of what was installed when it was measured; empty without one
""")
_ID: ColumnMeanings = _parse_columns("""
cell_id text hash of everything that makes the cell what it is; the key to join tables by
""")

RUNS: ColumnMeanings = (
    _ID
    | _parse_columns("""
repetition count number of the run: (composition - 1) x 1000 + its number in the composition, from 1; also its block
composition count composition of its configuration that it was measured on, from 1
""")
    | _CELL
    | _parse_columns("""
status text ok, or the class of the failure: oom_device, oom_host, time_limit, nan, crashed, ...
failure_reason text why a run is not ok, in words; empty for ok
value number the campaign's primary metric; null unless ok and positive
throughput_per_s number samples per second over all ranks; null unless ok
throughput_per_device_per_s number throughput_per_s over ranks
throughput_printed_per_s number rate printed by a run that is not valid; not used in any mean
step_median_s number median step time of the slowest rank
step_p95_s number 95th percentile of its step times
step_cv_pct number standard deviation over mean of its step times
step_error_pct number standard error of its mean step time, in percent, as if steps were independent
step_trend_pct number by how much the last quarter of its steps takes longer than the first, by their medians
step_ties_pct number share of its steps whose time is exactly that of an earlier one: many by a coarse clock
warmup_steps count warm-up steps that it made; where the program does not say it, those that it was asked to make
warmup_steps_max count warm-up steps that it was asked to make; the most, where they go on until steps are steady
measured_steps count steps that were timed; 0 where the program does not tell single steps
measured_steps_min count the same; where they were counted from the seconds that they should take at least, those asked for
window_s number time of all measured steps together, on the slowest rank
wall_s number from start to end of the run; null where that is not known
started number Unix seconds; of an imported log without a start, its end
ended number Unix seconds
idle_before_s number since the end of the run before on the same lease; null for its first
lease_id text use of a lease that it was measured on
host_names text hosts, joined by ', '
ran_on text devices that its ranks say their work was on, joined by ', '; empty where nothing reports it
in_force text what was found in force, joined by ', ': the precision of products, the attention kernel, a fused optimizer
flags text what a reader of the number should know, joined by ', '
log text path of the log in the results directory, or where it was imported from
stopped text why it is its cell's last repetition, where a target ended them
implied_by text run (cell_id.repetition) that implies how this one ends, which was not started
""")
)

REFERENCE: ColumnMeanings = RUNS | _parse_columns("""
hardware text equal for the same work on an equal device, whatever the lease
""")

MEASURED_COLUMNS = ("throughput_per_s", *MEASURED_BY_CAMPAIGN)
"""Fixed columns of runs with measured values, without settings and times of a run."""

PLANNED_COLUMNS: ColumnMeanings = (
    _ID
    | _CELL
    | _parse_columns("""
n_planned count repetitions that are planned
lease text name of the lease that measures its first composition
price_per_h number price of its composed devices for an hour; null where the system file has no prices
""")
)
"""Columns of the cells table that come from the plan."""

CELLS: ColumnMeanings = PLANNED_COLUMNS | _parse_columns("""
n_ok count runs that are ok and have a value of the primary metric
n_implied count runs that were not started because a smaller batch ran out of memory
n_failed count runs that were started and are not ok
n_missing count planned repetitions without a record
state text measured (a run is ok), failed, implied or missing
failures text statuses of its runs that are not ok, counted
failure_reasons text their reasons, counted
missing_reasons text why repetitions have no record, counted
flags text flags of its runs, each once
window text what its measured windows suffer from: not steady, short for its noise, timed by a coarse clock; empty for nothing
stopped text why a target, or the most repetitions under one, ended it
median number median over ok runs of the primary metric (throughput, samples per second, where a campaign names none)
median_low number lower end of the 95 % interval of the median
median_high number upper end of the 95 % interval of the median
mean number location over ok runs of the primary metric: total work over total time (harmonic mean of rates, mean of times),
    each composition alike, runs far from the others as near
sd number standard deviation over ok runs
min number least of the ok runs
max number most of the ok runs
step_median_s number median over ok runs of their median step times
cv_pct number sd over mean
ci_low number lower end of the 95 % interval of the mean
ci_high number upper end of the 95 % interval of the mean
interval_method text how the interval of the mean was made
median_method text how the interval of the median was made
n_outliers count ok runs that a robust rule marks as far from the others; none is left out of anything
outliers text which repetitions these are
""")

LEASES: ColumnMeanings = _parse_columns("""
lease_id text use of a lease; runs name it
configuration text name of the configuration that was composed
state text where the lease is in its life; RELEASED at the end
fabric_s number from the request to the fabric's last answer
visible_s number from there until the hosts see the devices; empty where nobody looked
readying_s number from there until a run can start
compose_s number the three together
held_s number from ready to the start of the release
release_s number the release itself
operations count requests to the fabric
retries count of these, repeated ones
mismatches count how often what was composed differs from what was requested
faults count faults of the fabric that were met
""")

OPERATIONS: ColumnMeanings = _parse_columns("""
lease_id text use of a lease
configuration text name of the configuration
part text composing or release
operation text attach, detach, inventory, read_back, visible or request; rest: what composing took beside them
device text kind of device; empty where it is of all
box text part of the fabric, such as a drawer; empty where it is of all
answer text what the control plane answered, where that is kept
seconds number from the request until it was done
""")

STEPS: ColumnMeanings = _parse_columns("""
cell_id text cell of the run
repetition count number of the run
time_s number time of one measured step of the slowest rank; ascending inside of each run
""")

TELEMETRY: ColumnMeanings = _parse_columns("""
cell_id text cell of the run; one run a cell is kept over time
repetition count repetition of the run
host text host that was sampled
part text gpu:<id>, gauge:<id>, or host for the whole host
quantity text what was sampled, with its unit at the end
time_s number seconds since the run began
value number the sample, in the unit that the quantity's name ends in
""")

_TABLES: Mapping[str, tuple[ColumnMeanings, str]] = {
    "runs": (RUNS, "one row a run"),
    "cells": (CELLS, "one row a planned cell, measured or not"),
    "leases": (LEASES, "one row a use of a lease"),
    "operations": (OPERATIONS, "one row a timed operation of the fabric"),
    "telemetry": (TELEMETRY, "one row a sample of a run, thinned"),
    "steps": (STEPS, "one row a measured step; of runs with more than 200 steps, 200 quantiles of them"),
    "reference": (REFERENCE, "one row a run of the reference, which is measured in every lease; empty without one"),
}
COLUMN_MEANINGS: Mapping[str, Mapping[str, str]] = {
    table: {name: means for name, (_, means) in columns.items()} for table, (columns, _) in _TABLES.items()
}
"""Table -> column -> meaning."""

ROW_MEANINGS: Mapping[str, str] = {table: rows for table, (_, rows) in _TABLES.items()}
"""Table -> meaning of a row."""


def list_column_types(columns: ColumnMeanings) -> dict[str, str]:
    """Return the type of each column."""
    return {name: kind for name, (kind, _) in columns.items()}
