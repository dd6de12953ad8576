# This is the file that `snakemake` finds in a checkout. Other workflows and the workflow catalog use workflow/Snakefile.
include: "workflow/Snakefile"


rule campaign:
    default_target: True
    input:
        rules.all.input,
