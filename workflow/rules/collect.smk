"""Collect: from records to tables."""

TABLES = {
    "runs": f"{RESULTS}/tables/runs.parquet",
    "runs_csv": f"{RESULTS}/tables/runs.csv",
    "cells": f"{RESULTS}/tables/cells.parquet",
    "cells_csv": f"{RESULTS}/tables/cells.csv",
    "telemetry": f"{RESULTS}/tables/telemetry.parquet",
    "steps": f"{RESULTS}/tables/steps.parquet",
    "reference": f"{RESULTS}/tables/reference.parquet",
    "leases": f"{RESULTS}/tables/leases.json",
    "links": f"{RESULTS}/tables/links.json",
    "context": f"{RESULTS}/tables/context.json",
    "costs": f"{RESULTS}/tables/costs.json",
}


rule tables:
    input:
        missing=MEASURED,
        plan=plan_file,
    output:
        **TABLES,
    log:
        f"{RESULTS}/logs/tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/tables.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        code=compute_source_hash(),
    message:
        "Collect records into tables"
    shell:
        "campaign collect {input.plan:q} > {log:q}"
