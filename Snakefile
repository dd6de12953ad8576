# What `snakemake` finds in a checkout. Other workflows and the workflow catalog use workflow/Snakefile, which is the workflow.
include: "workflow/Snakefile"


rule campaign:
    default_target: True
    input:
        rules.all.input,
