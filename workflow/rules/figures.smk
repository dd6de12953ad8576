"""Figures: all in one job, which reads the tables once.

REQUIRES: tables/
PROVIDES: figures/{figure}.svg, .csv (its data), .json (caption, alt text, findings)
"""

FIGURE_SCRIPTS = sorted(
    str(path) for path in Path(workflow.basedir, "scripts", "figures").glob("[a-z]*.py")
)
FIGURES = [Path(script).stem for script in FIGURE_SCRIPTS]


rule figures:
    input:
        runs=rules.tables.output.runs,
        cells=rules.tables.output.cells,
        telemetry=rules.tables.output.telemetry,
        leases=rules.tables.output.leases,
        links=rules.tables.output.links,
        context=rules.tables.output.context,
        scripts=FIGURE_SCRIPTS,
        style=f"{workflow.basedir}/reports/style.mplstyle",
    output:
        json=expand(f"{RESULTS}/figures/{{figure}}.json", figure=FIGURES),
        svg=expand(f"{RESULTS}/figures/{{figure}}.svg", figure=FIGURES),
        csv=expand(f"{RESULTS}/figures/{{figure}}.csv", figure=FIGURES),
    log:
        f"{RESULTS}/logs/figures.log",
    conda:
        "../../envs/campaign.yaml"
    message:
        "Draw the figures"
    script:
        "../../scripts/draw.py"
