"""Archive: the report of an archive, on any machine, with --config archive=FILE. This stage replaces all others."""

if not REQUEST.archive.is_file():
    sys.exit(f"error: {REQUEST.archive}: this archive does not exist")
REPORT = f"{REQUEST.results}/archives/{REQUEST.archive.stem}/report.html"


rule report:
    input:
        archive=local(str(REQUEST.archive)),
    output:
        page=report(REPORT, category="Report"),
    log:
        f"{REPORT}.log",
    benchmark:
        f"{REPORT}.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        where=["--where", REQUEST.where] if REQUEST.where else [],
        code=compute_source_hash(REPORTS, SCRIPTS),
    message:
        "Write the report of the archive {input.archive} to {output.page}"
    shell:
        "campaign report {input.archive:q} {params.where:q} --output {output.page:q} > {log:q}"
