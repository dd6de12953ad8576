# Composable Campaign: from one YAML file to a report. The stages, in running order:
from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/request.smk"


if ASKED.archive:

    include: "workflow/rules/archive.smk"

else:

    include: "workflow/rules/plan.smk"
    include: "workflow/rules/leases.smk"
    include: "workflow/rules/measure.smk"
    include: "workflow/rules/collect.smk"
    include: "workflow/rules/figures.smk"
    include: "workflow/rules/recommend.smk"
    include: "workflow/rules/report.smk"
    include: "workflow/rules/summary.smk"

    rule all:
        default_target: True
        input:
            rules.summary.output,
