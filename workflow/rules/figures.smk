"""Figures: one job, which reads the tables once.

REQUIRES: tables/; scripts/figures/, one file a figure
PROVIDES: figures/: of each figure {figure}.json (caption, alt text, findings) and, where it has something to show, .svg, .pdf (of one that fits a sheet) and .csv (its data)
"""

FIGURES = f"{RESULTS}/figures"


rule figures:
    input:
        **TABLES,
    output:
        report(
            directory(FIGURES),
            patterns=["{figure}.svg"],
            category="Figures",
            labels={"figure": "{figure}", "campaign": NAME},
        ),
    log:
        f"{RESULTS}/logs/figures.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output[0]).parent,
        code=code_of(SCRIPTS / "figures", REPORTS / "style.mplstyle"),
    message:
        "Draw the figures"
    shell:
        "campaign figures {params.results:q} --for report --output {output:q} > {log:q}"
