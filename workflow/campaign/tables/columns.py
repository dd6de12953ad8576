"""The columns of all tables: their order, their type, and what they mean (also for `campaign sql --tables` and the reference)."""

from __future__ import annotations

from collections.abc import Mapping

from campaign.documents.metric import unit_words
from campaign.tables.io import COUNT, FLAG, NUMBER, TEXT

Columns = Mapping[str, tuple[str, str]]
"""Column -> type and meaning."""

_CELL: Columns = {
    "configuration": (TEXT, "name of the configuration, the requested hardware"),
    "system": (TEXT, "name of the system that it is on"),
    "hosts": (COUNT, "hosts of the configuration"),
    "devices_per_host": (
        COUNT,
        "devices composed onto each host; the most where hosts differ, here and in the next two",
    ),
    "local_devices_per_host": (COUNT, "of these, the host's own; the others come from the fabric's pool"),
    "devices_used": (COUNT, "devices of each host that a run uses"),
    "ranks": (COUNT, "devices that a run uses over all hosts, one rank each"),
    "devices": (COUNT, "devices composed over all hosts"),
    "device": (
        TEXT,
        "device model; with the system where the campaign has several, and with the layout where hosts have unequal devices",
    ),
    "attach": (TEXT, "local, hybrid or fabric; ending in -p2p where peer-to-peer through the fabric is on"),
    "storage": (TEXT, "local, nvme or fabric-nvme"),
    "workload": (TEXT, "name of the workload"),
    "batch": (COUNT, "samples a device takes in one step"),
    "batch_global": (COUNT, "batch times ranks"),
    "precision": (TEXT, "number format"),
    "predicted": (
        FLAG,
        "whether its workload is replayed: then its numbers are predictions, and no device was measured",
    ),
}
_ID: Columns = {"cell_id": (TEXT, "hash of everything that makes the cell what it is; the key to join tables by")}

RUNS: Columns = {
    **_ID,
    "repetition": (
        COUNT,
        "number of the run: (composition - 1) x 1000 + its number in the composition, from 1; also its block",
    ),
    "composition": (COUNT, "composition of its configuration that it was measured on, from 1"),
    **_CELL,
    "status": (TEXT, "ok, or the class of the failure: oom_device, oom_host, time_limit, nan, crashed, ..."),
    "failure_reason": (TEXT, "why a run is not ok, in words; empty for ok"),
    "value": (NUMBER, "the campaign's primary metric; null unless ok and positive"),
    "throughput_per_s": (NUMBER, "samples per second over all ranks; null unless ok"),
    "throughput_per_device_per_s": (NUMBER, "throughput_per_s over ranks"),
    "throughput_printed_per_s": (NUMBER, "rate printed by a run that is not valid; not used in any mean"),
    "step_median_s": (NUMBER, "median step time of the slowest rank"),
    "step_p95_s": (NUMBER, "95th percentile of its step times"),
    "step_cv_pct": (NUMBER, "standard deviation over mean of its step times"),
    "step_error_pct": (NUMBER, "standard error of its mean step time, in percent, as if steps were independent"),
    "step_trend_pct": (
        NUMBER,
        "by how much the last quarter of its steps takes longer than the first, by their medians",
    ),
    "step_ties_pct": (
        NUMBER,
        "share of its steps whose time is exactly that of an earlier one: many by a coarse clock",
    ),
    "warmup_steps": (
        COUNT,
        "warm-up steps that it made; where the program does not say it, those that it was asked to make",
    ),
    "warmup_steps_max": (
        COUNT,
        "warm-up steps that it was asked to make; the most, where they go on until steps are steady",
    ),
    "measured_steps": (COUNT, "steps that were timed; 0 where the program does not tell single steps"),
    "window_s": (NUMBER, "time of all measured steps together, on the slowest rank"),
    "wall_s": (NUMBER, "from start to end of the run; null where that is not known"),
    "started": (NUMBER, "Unix seconds; of an imported log without a start, its end"),
    "ended": (NUMBER, "Unix seconds"),
    "idle_before_s": (NUMBER, "since the end of the run before on the same lease; null for its first"),
    "lease_id": (TEXT, "use of a lease that it was measured on"),
    "host_names": (TEXT, "hosts, joined by ', '"),
    "ran_on": (TEXT, "devices that its ranks say their work was on, joined by ', '; empty where nothing reports it"),
    "flags": (TEXT, "what a reader of the number should know, joined by ', '"),
    "log": (TEXT, "path of the log in the results directory, or where it was imported from"),
    "stopped": (TEXT, "why it is its cell's last repetition, where a target ended them"),
    "implied_by": (TEXT, "run (cell_id.repetition) that implies how this one ends, which was not started"),
}

REFERENCE: Columns = {
    **RUNS,
    "hardware": (TEXT, "equal for the same work on an equal device, whatever the lease"),
}

MEASURED = (
    "throughput_per_s",
    "throughput_per_device_per_s",
    "step_median_s",
    "step_p95_s",
    "step_cv_pct",
    "wall_s",
)
"""Of the fixed columns of runs: what was measured, neither how a run was set up nor when it was."""

PLANNED: Columns = {
    **_ID,
    **_CELL,
    "n_planned": (COUNT, "repetitions that are planned"),
    "lease": (TEXT, "name of the lease that measures its first composition"),
    "price_per_h": (NUMBER, "price of its composed devices for an hour; null where the system file has no prices"),
}
"""The columns of the cells table that the plan knows."""

CELLS: Columns = {
    **PLANNED,
    "n_ok": (COUNT, "runs that are ok and have a value of the primary metric"),
    "n_implied": (COUNT, "runs that were not started because a smaller batch ran out of memory"),
    "n_failed": (COUNT, "runs that were started and are not ok"),
    "n_missing": (COUNT, "planned repetitions without a record"),
    "state": (TEXT, "measured (a run is ok), failed, implied or missing"),
    "failures": (TEXT, "statuses of its runs that are not ok, counted"),
    "failure_reasons": (TEXT, "their reasons, counted"),
    "missing_reasons": (TEXT, "why repetitions have no record, counted"),
    "flags": (TEXT, "flags of its runs, each once"),
    "window": (
        TEXT,
        "what its measured windows suffer from: not steady, short for its noise, timed by a coarse clock; empty for nothing",
    ),
    "stopped": (TEXT, "why a target, or the most repetitions under one, ended it"),
    "median": (
        NUMBER,
        "median over ok runs of the primary metric (throughput, samples per second, where a campaign names none)",
    ),
    "median_low": (NUMBER, "lower end of the 95 % interval of the median"),
    "median_high": (NUMBER, "upper end of the 95 % interval of the median"),
    "mean": (
        NUMBER,
        "location over ok runs of the primary metric: total work over total time (harmonic mean of rates, mean of times), each "
        "composition alike, runs far from the others as near",
    ),
    "sd": (NUMBER, "standard deviation over ok runs"),
    "min": (NUMBER, "least of the ok runs"),
    "max": (NUMBER, "most of the ok runs"),
    "step_median_s": (NUMBER, "median over ok runs of their median step times"),
    "cv_pct": (NUMBER, "sd over mean"),
    "ci_low": (NUMBER, "lower end of the 95 % interval of the mean"),
    "ci_high": (NUMBER, "upper end of the 95 % interval of the mean"),
    "interval_method": (TEXT, "how the interval of the mean was made"),
    "median_method": (TEXT, "how the interval of the median was made"),
    "n_outliers": (COUNT, "ok runs that a robust rule marks as far from the others; none is left out of anything"),
    "outliers": (TEXT, "which repetitions these are"),
}

LEASES: Columns = {
    "lease_id": (TEXT, "use of a lease; runs name it"),
    "configuration": (TEXT, "name of the configuration that was composed"),
    "state": (TEXT, "where the lease is in its life; RELEASED at the end"),
    "fabric_s": (NUMBER, "from the request to the fabric's last answer"),
    "visible_s": (NUMBER, "from there until the hosts see the devices; empty where nobody looked"),
    "readying_s": (NUMBER, "from there until a run can start"),
    "compose_s": (NUMBER, "the three together"),
    "held_s": (NUMBER, "from ready to the start of the release"),
    "release_s": (NUMBER, "the release itself"),
    "ports_gb_per_s": (
        NUMBER,
        "what the fabric's ports carried on average, all together; null where nothing counts it",
    ),
    "operations": (COUNT, "requests to the fabric"),
    "retries": (COUNT, "of these, repeated ones"),
    "mismatches": (COUNT, "how often what was composed differs from what was requested"),
    "faults": (COUNT, "faults of the fabric that were met"),
}

OPERATIONS: Columns = {
    "lease_id": (TEXT, "use of a lease"),
    "configuration": (TEXT, "name of the configuration"),
    "part": (TEXT, "composing or release"),
    "operation": (
        TEXT,
        "attach, detach, inventory, read_back, visible or request; rest: what composing took beside them",
    ),
    "device": (TEXT, "kind of device; empty where it is of all"),
    "box": (TEXT, "part of the fabric, such as a drawer; empty where it is of all"),
    "answer": (TEXT, "what the control plane answered, where that is kept"),
    "seconds": (NUMBER, "from the request until it was done"),
}

LINKS: Columns = {
    "lease_id": (TEXT, "use of a lease whose links were measured"),
    "configuration": (TEXT, "name of the configuration"),
    "measured": (TEXT, "before or after the runs"),
    "quantity": (
        TEXT,
        "unidirectional_gb_per_s, bidirectional_gb_per_s, latency_us, h2d_gb_per_s, d2h_gb_per_s, allreduce_busbw_gb_per_s, "
        "allreduce_algbw_gb_per_s or allreduce_time_s",
    ),
    "source": (TEXT, "device that sends, or 'host'; empty for all-reduce, which is of all devices"),
    "target": (TEXT, "device that receives, or 'host'; likewise"),
    "kind": (TEXT, "kind of way between the two; empty where there is none"),
    "size_bytes": (COUNT, "size of the message"),
    "value": (NUMBER, "what was measured, in the unit that the quantity's name ends in; GB are 1e9 bytes"),
}

STEPS: Columns = {
    "cell_id": (TEXT, "cell of the run"),
    "repetition": (COUNT, "number of the run"),
    "time_s": (NUMBER, "time of one measured step of the slowest rank; ascending inside of each run"),
}

REQUESTS: Columns = {
    "cell_id": (TEXT, "cell of the run"),
    "repetition": (COUNT, "number of the run"),
    "intended_s": (
        NUMBER,
        "when the request was to start, in seconds from the start of the load; latencies count from here",
    ),
    "sent_s": (NUMBER, "when it was sent; later than intended where the load generator was late"),
    "first_s": (NUMBER, "when its first token came; null where none came"),
    "last_s": (NUMBER, "when its last token came; null where none came"),
    "prompt_tokens": (NUMBER, "tokens of its prompt, as the server counts them where it does"),
    "output_tokens": (NUMBER, "tokens of its answer"),
    "error": (TEXT, "why it has no complete answer; empty where it has"),
    "in_window": (FLAG, "whether it counts: it was to start after the warm-up and before the end of the load"),
}

TELEMETRY: Columns = {
    "cell_id": (TEXT, "cell of the run; one run a cell is kept over time"),
    "repetition": (COUNT, "repetition of the run"),
    "host": (TEXT, "host that was sampled"),
    "part": (TEXT, "gpu:<id>, gauge:<id>, or host for the whole host"),
    "quantity": (TEXT, "what was sampled, with its unit at the end"),
    "time_s": (NUMBER, "seconds since the run began"),
    "value": (NUMBER, "the sample, in the unit that the quantity's name ends in"),
}

_TABLES: Mapping[str, Columns] = {
    "runs": RUNS,
    "cells": CELLS,
    "leases": LEASES,
    "operations": OPERATIONS,
    "links": LINKS,
    "telemetry": TELEMETRY,
    "steps": STEPS,
    "reference": REFERENCE,
    "requests": REQUESTS,
}
_CAMPAIGN = {"campaign": "name of the campaign; of the source where two campaigns have one name"}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    table: {**_CAMPAIGN, **{name: means for name, (_, means) in columns.items()}} for table, columns in _TABLES.items()
}
"""Table -> column -> what it means."""

ROWS: Mapping[str, str] = {
    "runs": "one row a run",
    "cells": "one row a planned cell, measured or not",
    "leases": "one row a use of a lease",
    "operations": "one row a timed operation of the fabric",
    "links": "one row a measured number of a link",
    "telemetry": "one row a sample of a run, thinned",
    "reference": "one row a run of the reference, which is measured in every lease; empty without one",
    "steps": "one row a measured step; of runs with more than 200 steps, 200 quantiles of them",
    "requests": "one row a request to a service, also of runs that are invalid; empty without a service",
}


def types(columns: Columns) -> dict[str, str]:
    """The type of each column."""
    return {name: kind for name, (kind, _) in columns.items()}


def meaning(table: str, column: str) -> str:
    """What a column means; options and metrics, which campaigns bring with them, are told by their name."""
    known = COLUMNS[table].get(column)
    if known is not None:
        return known
    if column.startswith("option_"):
        return f"option '{column.removeprefix('option_')}' of the workload"
    name = column.removeprefix("metric_")
    return f"metric of the workload or of telemetry ({unit_words(name) or 'no unit'}); null where it was not there"
