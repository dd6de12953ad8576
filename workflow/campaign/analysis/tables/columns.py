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
system text name of the system that the configuration belongs to
hosts count hosts of the configuration
devices_per_host count devices composed onto each host
local_devices_per_host count devices_per_host that are local; the rest come from the pool of the fabric
devices_used count devices of each host that a run uses
ranks count devices that a run uses on all hosts, with one rank per device
devices count devices composed onto all hosts
device text device model, with the name of the system if the campaign has several systems
attach text local, hybrid or fabric, with the suffix -p2p if peer-to-peer through the fabric is enabled
storage text local, nvme or fabric-nvme
workload text name of the workload
batch count samples per device and step
batch_global count batch times ranks: samples per step of all devices
precision text number format
version text version label of the installed software; empty without a label
""")
_ID: ColumnMeanings = _parse_columns("""
cell_id text hash of everything that defines the cell; the key for joining tables
""")

RUNS: ColumnMeanings = (
    _ID
    | _parse_columns("""
repetition count number of the run: (composition - 1) x 1000 + its number in the composition, from 1; also the number of its block
composition count number of the composition that the run was measured on, from 1
""")
    | _CELL
    | _parse_columns("""
status text ok, or the class of the failure: oom_device, oom_host, time_limit, nan, crashed, ...
failure_reason text reason that a run is not ok, in words; empty for ok
value number primary metric of the campaign; null unless the run is ok and the number is positive
throughput_per_s number samples per second over all ranks; null unless the run is ok
throughput_per_device_per_s number throughput_per_s divided by ranks
throughput_printed_per_s number rate that an invalid run printed; not used in any mean
step_median_s number median step time of the slowest rank
step_p95_s number 95th percentile of its step times
step_cv_pct number coefficient of variation of its step times, in percent
step_error_pct number standard error of its mean step time, in percent, if steps are independent
step_trend_pct number increase of the median step time from the first to the last quarter of its steps, in percent
step_ties_pct number percentage of its steps that take exactly as long as an earlier step; a coarse clock makes it large
warmup_steps count number of its warm-up steps; the requested number if the program does not report it
warmup_steps_max count requested number of warm-up steps; the maximum if the warm-up lasts until steps are steady
measured_steps count number of timed steps; 0 if the program does not report single steps
measured_steps_min count requested number of timed steps if a minimum duration sets it; otherwise measured_steps
window_s number total time of all measured steps on the slowest rank
wall_s number seconds from start to end of the run; null if unknown
started number start in Unix seconds; the end for an imported log without a start
ended number end in Unix seconds
idle_before_s number seconds since the end of the previous run on the same lease; null for the first run
own_load_s number processor time of this campaign's processes on all hosts in the measured window, in seconds; null if unknown
foreign_load_s number processor time of all other programs on its hosts in the measured window, in seconds; null if unknown
own_load_pct number own_load_s as a share of all cores, on the host with the largest share, in percent
foreign_load_pct number foreign_load_s as a share of all cores, on the host with the largest share, in percent
lease_id text id of the lease that the run was measured on
host_names text names of its hosts, joined by ', '
ran_on text devices that its ranks report for their work, joined by ', '; empty without such reports
in_force text options that were verified to be in effect, joined by ', ', such as the precision of products or the attention kernel
flags text notes that readers of the number need, joined by ', '
log text path of the log in the results directory, or of the imported file
stopped text reason that no further repetition was run, if a target ended the cell
implied_by text run (cell_id.repetition) whose failure implies that of this run, which was not started
""")
)

REFERENCE: ColumnMeanings = RUNS | _parse_columns("""
hardware text hash that is equal for the same work on equal devices, regardless of the lease
""")

MEASURED_COLUMNS = ("throughput_per_s", *MEASURED_BY_CAMPAIGN)
"""Fixed columns of runs with measured values, without settings and times of a run."""

PLANNED_COLUMNS: ColumnMeanings = (
    _ID
    | _CELL
    | _parse_columns("""
n_planned count number of planned repetitions
lease text name of the lease that measures its first composition
price_per_h number price per hour of its composed devices; null if the system file has no prices
""")
)
"""Columns of the cells table that come from the plan."""

CELLS: ColumnMeanings = PLANNED_COLUMNS | _parse_columns("""
n_ok count runs that are ok and have the primary metric
n_implied count runs that were not started because a smaller batch ran out of memory
n_failed count runs that were started and failed
n_missing count planned repetitions without a record
state text measured (at least one run is ok), failed, implied or missing
failures text statuses of its failed runs, with their counts
failure_reasons text reasons of its failed runs, with their counts
missing_reasons text reasons that repetitions have no record, with their counts
flags text distinct flags of its runs
window text problems of its measured windows: not steady, short for its noise, timed by a coarse clock; empty for none
stopped text reason that ended the cell: a target, or the maximum number of repetitions under a target
median number median over ok runs of the primary metric (by default throughput in samples per second)
median_low number lower end of the 95 % interval of the median
median_high number upper end of the 95 % interval of the median
mean number location over ok runs of the primary metric: total work over total time (harmonic mean of rates, mean of times),
    with equal weight per composition and outliers clipped
sd number standard deviation over ok runs
min number smallest value of the ok runs
max number largest value of the ok runs
step_median_s number median over ok runs of their median step times
cv_pct number sd divided by mean, in percent
ci_low number lower end of the 95 % interval of the mean
ci_high number upper end of the 95 % interval of the mean
interval_method text method of the interval of the mean
median_method text method of the interval of the median
n_outliers count ok runs that a robust rule marks as outliers; no run is excluded
outliers text composition and run number of the outliers, with their distances from the median, joined by '; '
""")

LEASES: ColumnMeanings = _parse_columns("""
lease_id text id of the lease, which runs refer to
configuration text name of the configuration that was composed
state text state of the lease; RELEASED at the end
fabric_s number seconds from the request to the last answer of the fabric
visible_s number further seconds until the hosts detect the devices; null if this was not checked
readying_s number further seconds until a run can start
compose_s number sum of fabric_s, visible_s and readying_s
held_s number seconds from ready to the start of the release
release_s number seconds of the release
operations count number of requests to the fabric
retries count number of repeated requests
mismatches count number of differences between the composed and the requested configuration
faults count number of faults of the fabric
compose_failures count number of failed attempts to compose
""")

OPERATIONS: ColumnMeanings = _parse_columns("""
lease_id text use of a lease
configuration text name of the configuration
part text phase of the lease: composing or release
operation text attach, detach, inventory, read_back, visible or request; rest is the remaining time of composing
device text kind of device; empty if the operation concerns all devices
box text part of the fabric, such as a drawer; empty if the operation concerns all parts
answer text answer of the control plane, if it was recorded
seconds number duration from the request to its completion
""")

STEPS: ColumnMeanings = _parse_columns("""
cell_id text cell of the run
repetition count number of the run
time_s number duration of one measured step of the slowest rank, in ascending order within each run
""")

TELEMETRY: ColumnMeanings = _parse_columns("""
cell_id text cell of the run; the table has one run per cell
repetition count repetition of the run
host text host that was sampled
part text gpu:<id> or gauge:<id> for a device, host for the whole host
quantity text name of the sampled quantity, which ends with its unit
time_s number seconds since the run began
value number value of the sample, in the unit of the quantity
""")

_TABLES: Mapping[str, tuple[ColumnMeanings, str]] = {
    "runs": (RUNS, "one row per run"),
    "cells": (CELLS, "one row per planned cell, measured or not"),
    "leases": (LEASES, "one row per lease"),
    "operations": (OPERATIONS, "one row per timed operation of the fabric"),
    "telemetry": (TELEMETRY, "one row per sample of a run, thinned"),
    "steps": (STEPS, "one row per measured step; 200 quantiles for a run with more than 200 steps"),
    "reference": (
        REFERENCE,
        "one row per run of the reference, which is measured in every lease; empty without a reference",
    ),
}
COLUMN_MEANINGS: Mapping[str, Mapping[str, str]] = {
    table: {name: means for name, (_, means) in columns.items()} for table, (columns, _) in _TABLES.items()
}
"""Table -> column -> meaning."""

ROW_MEANINGS: Mapping[str, str] = {table: rows for table, (_, rows) in _TABLES.items()}
"""Table -> meaning of a row."""


def list_column_types(columns: ColumnMeanings) -> dict[str, str]:
    """Return the column types by name, from the kinds of columns."""
    return {name: kind for name, (kind, _) in columns.items()}
