"""Figures: one job that reads the tables once. scripts/figures/ contains one file per figure."""

FIGURES = f"{RESULTS}/figures"


rule figures:
    input:
        **TABLES,
    output:
        directory=report(
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
        results=lambda wildcards, output: Path(output.directory).parent,
        code=compute_source_hash(*list_figure_directories(), REPORTS / "style.mplstyle"),
    message:
        "Draw the figures"
    shell:
        "campaign figures {params.results:q} --for report --output {output.directory:q} > {log:q}"
