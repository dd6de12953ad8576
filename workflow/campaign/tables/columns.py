"""What every column of the tables means: one dictionary, for `campaign sql --tables` and for whoever opens the Parquet files."""

from __future__ import annotations

from collections.abc import Mapping

_CELL: Mapping[str, str] = {
    "cell_id": "hash of everything that makes the cell what it is; the key to join tables by",
    "configuration": "name of the configuration, the requested hardware",
    "hosts": "hosts of the configuration",
    "devices_per_host": "devices composed onto each host",
    "local_devices_per_host": "of these, the host's own; the others come from the fabric's pool",
    "devices_used": "devices of each host that a run uses",
    "ranks": "devices that a run uses over all hosts, one rank each",
    "devices": "devices composed over all hosts",
    "device": "device model",
    "attach": "local, hybrid or fabric",
    "storage": "local, nvme or fabric-nvme",
    "workload": "name of the workload",
    "batch": "samples a device takes in one step",
    "batch_global": "batch times ranks",
    "precision": "number format",
}
_CAMPAIGN = {"campaign": "name of the campaign; of the source where two campaigns have one name"}

RUNS: Mapping[str, str] = {
    **_CAMPAIGN,
    **_CELL,
    "repetition": "1-based; also the block of the design",
    "status": "ok, or the class of the failure: oom_device, oom_host, time_limit, nan, crashed, ...",
    "failure_reason": "why a run is not ok, in words; empty for ok",
    "throughput_per_s": "samples per second over all ranks; null unless ok",
    "throughput_per_device_per_s": "throughput_per_s over ranks",
    "throughput_printed_per_s": "what a run printed whose rate is not believed",
    "step_median_s": "median step time of the slowest rank",
    "step_p95_s": "95th percentile of its step times",
    "step_cv_pct": "standard deviation over mean of its step times",
    "wall_s": "from start to end of the run; null where that is not known",
    "started": "Unix seconds; of an imported log without a start, its end",
    "ended": "Unix seconds",
    "idle_before_s": "since the end of the run before on the same lease; null for its first",
    "lease_id": "use of a lease that it was measured on",
    "host_names": "hosts, joined by ', '",
    "flags": "what a reader of the number should know, joined by ', '",
    "log": "path of the log in the results directory, or where it was imported from",
    "stopped": "why it is its cell's last repetition, where a target ended them",
    "implied_by": "run (cell_id.repetition) that implies how this one ends, which was not started",
}

CELLS: Mapping[str, str] = {
    **_CAMPAIGN,
    **_CELL,
    "n_planned": "repetitions that are planned",
    "lease": "name of the lease that measures it",
    "n_ok": "runs that are ok and have a throughput",
    "n_implied": "runs that were not started because a smaller batch ran out of memory",
    "n_failed": "runs that were started and are not ok",
    "n_missing": "planned repetitions without a record",
    "state": "measured (a run is ok), failed, implied or missing",
    "failures": "statuses of its runs that are not ok, counted",
    "failure_reasons": "their reasons, counted",
    "missing_reasons": "why repetitions have no record, counted",
    "flags": "flags of its runs, each once",
    "stopped": "why a target, or the most repetitions under one, ended it",
    "median": "throughput: median over ok runs, samples per second",
    "median_low": "lower end of the 95 % interval of the median",
    "median_high": "upper end of the 95 % interval of the median",
    "mean": "throughput: mean over ok runs, samples per second",
    "sd": "throughput: standard deviation over ok runs, samples per second",
    "min": "throughput: least of the ok runs, samples per second",
    "max": "throughput: most of the ok runs, samples per second",
    "step_median_s": "median over ok runs of their median step times",
    "cv_pct": "sd over mean",
    "ci_low": "lower end of the 95 % interval of the mean throughput",
    "ci_high": "upper end of the 95 % interval of the mean throughput",
    "interval_method": "how the interval of the mean was made",
    "median_method": "how the interval of the median was made",
    "n_outliers": "ok runs that a robust rule marks as far from the others; none is left out of anything",
    "outliers": "which repetitions these are",
}

LEASES: Mapping[str, str] = {
    **_CAMPAIGN,
    "lease_id": "use of a lease; runs name it",
    "configuration": "name of the configuration that was composed",
    "state": "where the lease is in its life; RELEASED at the end",
    "fabric_s": "from the request to the fabric's last answer",
    "visible_s": "from there until the hosts see the devices",
    "readying_s": "from there until a run can start",
    "compose_s": "the three together",
    "held_s": "from ready to the start of the release",
    "release_s": "the release itself",
    "operations": "requests to the fabric",
    "retries": "of these, repeated ones",
    "mismatches": "how often what was composed differs from what was requested",
    "faults": "faults of the fabric that were met",
    "ports_gb_per_s": "what the fabric's ports carried on average, all together; null where nothing counts it",
}

LINKS: Mapping[str, str] = {
    **_CAMPAIGN,
    "lease_id": "use of a lease whose links were measured",
    "configuration": "name of the configuration",
    "measured": "before or after the runs",
    "quantity": "unidirectional_gb_per_s, bidirectional_gb_per_s, latency_us, h2d_gb_per_s, d2h_gb_per_s, "
    "allreduce_busbw_gb_per_s, allreduce_algbw_gb_per_s or allreduce_time_s",
    "source": "device that sends, or 'host'; empty for all-reduce, which is of all devices",
    "target": "device that receives, or 'host'; likewise",
    "kind": "kind of way between the two; empty where there is none",
    "size_bytes": "size of the message",
    "value": "what was measured, in the unit that the quantity's name ends in; GB are 1e9 bytes",
}

TELEMETRY: Mapping[str, str] = {
    **_CAMPAIGN,
    "cell_id": "cell of the run; one run a cell is kept over time",
    "repetition": "repetition of the run",
    "host": "host that was sampled",
    "part": "gpu:<id>, gauge:<id>, or host for the whole host",
    "quantity": "what was sampled, with its unit at the end",
    "time_s": "seconds since the run began",
    "value": "the sample, in the unit that the quantity's name ends in",
}

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "runs": RUNS,
    "cells": CELLS,
    "leases": LEASES,
    "links": LINKS,
    "telemetry": TELEMETRY,
}
"""Table -> column -> what it means."""

ROWS: Mapping[str, str] = {
    "runs": "one row a run",
    "cells": "one row a planned cell, measured or not",
    "leases": "one row a use of a lease",
    "links": "one row a measured number of a link",
    "telemetry": "one row a sample of a run, thinned",
}

_UNITS: Mapping[str, str] = {
    "_gb_per_s": "1e9 bytes per second",
    "_per_s": "per second",
    "_pct": "percent",
    "_mib": "MiB",
    "_gib": "GiB",
    "_tflops": "TFLOP/s",
    "_mhz": "MHz",
    "_bytes": "bytes",
    "_us": "microseconds",
    "_ms": "milliseconds",
    "_s": "seconds",
    "_j": "joules",
    "_w": "watts",
    "_c": "degrees Celsius",
}


def meaning(table: str, column: str) -> str:
    """What a column means; options and metrics, which campaigns bring with them, are told by their name."""
    known = COLUMNS[table].get(column)
    if known is not None:
        return known
    if column.startswith("option_"):
        return f"option '{column.removeprefix('option_')}' of the workload"
    name = column.removeprefix("metric_")
    unit = next((words for suffix, words in _UNITS.items() if name.endswith(suffix)), "no unit")
    return f"metric of the workload or of telemetry ({unit}); null where it was not there"
