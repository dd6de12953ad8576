"""Collect: from records to tables.

REQUIRES: manifests of all leases, records/, shared/, leases/, links/; the YAML files, whose words the tables repeat
PROVIDES: tables/runs.{parquet,csv}, tables/cells.{parquet,csv}, tables/telemetry.parquet, tables/{leases,links,context,costs}.json
"""


def asked_of_collect():
    where = ["--where", ASKED.where] if ASKED.where else []
    implied = ["--run-implied"] if ASKED.run_implied else []
    return [str(ASKED.campaign), "--results", str(ASKED.results), *where, *implied]


rule tables:
    input:
        # The names of the manifests say which runs there are.
        manifests=CAMPAIGN_DAG.manifests,
        words=CAMPAIGN_DAG.files,
    output:
        runs=f"{RESULTS}/tables/runs.parquet",
        runs_csv=f"{RESULTS}/tables/runs.csv",
        cells=f"{RESULTS}/tables/cells.parquet",
        cells_csv=f"{RESULTS}/tables/cells.csv",
        telemetry=f"{RESULTS}/tables/telemetry.parquet",
        leases=f"{RESULTS}/tables/leases.json",
        links=f"{RESULTS}/tables/links.json",
        context=f"{RESULTS}/tables/context.json",
        costs=f"{RESULTS}/tables/costs.json",
    log:
        f"{RESULTS}/logs/tables.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        asked=shlex.join(asked_of_collect()),
    message:
        "Collect records into tables"
    shell:
        "{resources.campaign} collect {resources.asked}" + code_of()
