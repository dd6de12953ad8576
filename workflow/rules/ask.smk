"""Ask: with --config question="...", leases are chosen in rounds, by what was measured before, until the question is answered.

REQUIRES: CAMPAIGN_DAG; tables are not read, but records/
PROVIDES: questions/, the rounds; manifests_of_rounds(), plan_of_rounds()
"""

ASKED_FILE = str(CAMPAIGN_DAG.asked_path("{n}"))


def manifests_of_round(n):
    # Raises, until it was asked so often; then Snakemake asks again.
    return CAMPAIGN_DAG.manifests_asked(checkpoints.ask.get(n=n).output[0])


def manifests_of_rounds(_):
    manifests, n = [], 1
    while (chosen := manifests_of_round(n)) is not None:
        manifests += chosen
        n += 1
    return [*manifests, ASKED_FILE.format(n=n)]


def plan_of_rounds(wildcards):
    manifests_of_rounds(wildcards)
    return plan_file(wildcards)


def question_file(wildcards):
    path, is_new = plan_files().question(int(wildcards.n))
    return path if is_new else ancient(path)


checkpoint ask:
    input:
        lambda wildcards: (
            manifests_of_round(int(wildcards.n) - 1) if int(wildcards.n) > 1 else []
        ),
        question=question_file,
        before=lambda wildcards: (
            ASKED_FILE.format(n=int(wildcards.n) - 1) if int(wildcards.n) > 1 else []
        ),
    output:
        ASKED_FILE,
    log:
        f"{RESULTS}/logs/ask/{{n}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/ask/{{n}}.tsv"
    wildcard_constraints:
        n="[1-9][0-9]*",
    conda:
        "../../envs/campaign.yaml"
    params:
        asked=ASKED.arguments(),
        before=lambda wildcards, input: (
            ["--before", input.before] if input.before else []
        ),
    message:
        "Ask what to measure next, time {wildcards.n}"
    shell:
        "campaign ask {params.asked:q} {params.before:q} --output {output:q} 2>&1 | tee {log:q}"
