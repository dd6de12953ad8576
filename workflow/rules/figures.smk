"""Figures: one job a figure, so that editing one redraws one.

REQUIRES: tables/
PROVIDES: figures/{figure}.svg, .csv (its data), .json (caption, alt text, findings)
"""

FIGURES = sorted(
    path.stem for path in Path(workflow.basedir, "scripts", "figures").glob("[a-z]*.py")
)


rule figure:
    input:
        runs=rules.tables.output.runs,
        cells=rules.tables.output.cells,
        telemetry=rules.tables.output.telemetry,
        leases=rules.tables.output.leases,
        links=rules.tables.output.links,
        context=rules.tables.output.context,
        # Named as an input, because Snakemake does not watch a script whose path has wildcards.
        script=f"{workflow.basedir}/scripts/figures/{{figure}}.py",
        style=f"{workflow.basedir}/reports/style.mplstyle",
    output:
        svg=f"{RESULTS}/figures/{{figure}}.svg",
        csv=f"{RESULTS}/figures/{{figure}}.csv",
        json=f"{RESULTS}/figures/{{figure}}.json",
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(FIGURES),
    conda:
        "../../envs/campaign.yaml"
    message:
        "Draw {wildcards.figure}"
    script:
        "../../scripts/figures/{wildcards.figure}.py"
