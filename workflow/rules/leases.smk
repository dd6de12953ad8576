"""Leases: what each job of the next stage takes of what they share, and in which order they come.

REQUIRES: CAMPAIGN_DAG, CORES
PROVIDES: cores_of_lease, devices_of_lease, hosts_of_lease, order_of_lease, words_of_lease, plan_of_lease
"""

from snakemake.resources import Resource


def cores_of_lease(wildcards):
    return CAMPAIGN_DAG.threads(wildcards.lease, CORES)


def devices_of_lease(wildcards):
    return CAMPAIGN_DAG.pool_devices(wildcards.lease)


def hosts_of_lease(wildcards):
    return CAMPAIGN_DAG.leases[wildcards.lease].configuration.hosts


def order_of_lease(wildcards):
    return CAMPAIGN_DAG.order(wildcards.lease)


def words_of_lease(wildcards):
    return CAMPAIGN_DAG.leases[wildcards.lease].describe()


def plan_of_lease(wildcards):
    return CAMPAIGN_DAG.lease_plan(wildcards.lease)


# Leases that cannot be had together are not started together. The fabric's own lock is what guards devices; this only keeps
# jobs from waiting for each other while they hold cores. --resources on the command line wins; of several campaigns in one DAG,
# the largest system counts.
for name, amount in CAMPAIGN_DAG.scarce.items():
    known = workflow.global_resources.get(name)
    if name not in workflow.resource_settings.resources:
        largest = max(amount, known.value or 0) if known else amount
        workflow.global_resources[name] = Resource(name, largest)
