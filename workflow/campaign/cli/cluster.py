"""The commands of `campaign cluster`: a composable cluster on one machine."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from campaign.cli.echo import echo
from campaign.cli.options import PATH, build_format_option
from campaign.cli.practice_cluster import get_default_directory
from campaign.common.errors import ConfigError
from campaign.emulators.hosts.cluster_spec import Cluster, find_cluster_in_environment
from campaign.emulators.slurm import cluster as clusters
from campaign.emulators.slurm import daemons
from campaign.emulators.slurm.cluster_directory import list_granted_devices, list_on_demand_compositions

if TYPE_CHECKING:
    from campaign.plan.campaign.load import LoadedFile
    from campaign.spec.system_file import SystemFile


_directory_option = click.option(
    "--directory",
    type=PATH,
    help="Directory of the cluster. Default: the directory of the cluster that SLURM_CONF belongs to, or "
    "$TMPDIR/campaign-cluster-$UID.",
)


@click.group()
def cluster() -> None:
    """Run a local practice cluster: Slurm on emulated hosts of this machine.

    Hosts are network namespaces with shaped links. The cluster needs root and Slurm's daemons. An existing Slurm installation is
    not changed.
    """


@cluster.command()
@click.argument("system", default="falcon-demo", metavar="[SYSTEM]")
@_directory_option
@click.option(
    "--no-accounting", is_flag=True, help="Start neither slurmdbd nor its database, so `sacct` does not work."
)
@click.option("--slurm-conf", multiple=True, metavar="LINE", help="Additional line of slurm.conf. May be repeated.")
def up(system: str, directory: Path | None, no_accounting: bool, slurm_conf: tuple[str, ...]) -> None:
    """Start the cluster that SYSTEM describes: a system file, or its name under config/systems.

    This takes about ten seconds. All files are in one directory. 'campaign cluster down' deletes it except for the logs.
    """
    from campaign.emulators.slurm.spec_from_system import build_cluster_spec

    spec = build_cluster_spec(read_system_file(system), not no_accounting, slurm_conf)
    practice_cluster = clusters.start_cluster(directory or get_default_directory(), spec, echo)
    directory_option = "" if directory is None else f" --directory {practice_cluster.directory}"
    echo(f"\nexport SLURM_CONF={practice_cluster.slurm_conf}\n")
    echo("After this line in your shell, Slurm's own commands use this cluster: sinfo, srun -N2 hostname.")
    echo(f"The campaign's commands find it in any terminal{':' if directory is None else ' with this variable:'}")
    echo("  snakemake --profile slurm        measures a campaign on it")
    echo(f"  campaign cluster status{directory_option}   shows daemons, hosts and jobs")
    echo(f"  campaign cluster down{directory_option}     stops everything")


@cluster.command()
@_directory_option
def down(directory: Path | None) -> None:
    """Stop the cluster and its jobs, and remove everything except its logs."""
    cluster_directory = _resolve_directory(directory)
    compositions = list_on_demand_compositions(cluster_directory)
    # A cluster that is named explicitly, by the option or by SLURM_CONF, is stopped regardless of its owner.
    if clusters.stop_cluster(
        cluster_directory, any_owner=directory is not None or cluster_directory != get_default_directory()
    ):
        echo(f"{cluster_directory}: the cluster is stopped; its logs are in {cluster_directory / 'log'}")
    else:
        echo(f"{cluster_directory}: no cluster is running here")
    for composition in compositions:
        echo(composition.release())


@cluster.command()
@_directory_option
@build_format_option("table", "json")
def status(directory: Path | None, style: str) -> None:
    """Show daemons, hosts and jobs. Exits with 1 if no cluster is running or a daemon is missing."""
    cluster_directory = _resolve_directory(directory)
    cluster_status = clusters.query_status(cluster_directory)
    if style == "json":
        from campaign.cli.terminal import print_json  # Imported late, because it imports rich.

        print_json(
            {
                "directory": cluster_directory,
                "slurm_conf": cluster_status.cluster and cluster_status.cluster.slurm_conf,
                "missing": cluster_status.missing,
                **{
                    part: [asdict(entry) for entry in getattr(cluster_status, part)]
                    for part in ("running", "hosts", "jobs")
                },
            }
        )
        raise SystemExit(int(cluster_status.cluster is None or bool(cluster_status.missing)))
    if (running_cluster := cluster_status.cluster) is None:
        echo(f"{cluster_directory}: no cluster is running here; 'campaign cluster up' starts one")
        raise SystemExit(1)
    rates = running_cluster.spec.rates
    echo(f"SLURM_CONF={running_cluster.slurm_conf}")
    for link, rate_gb_per_s in (
        ("local", rates.local_gb_per_s),
        ("fabric", rates.fabric_gb_per_s),
        ("network", rates.network_gb_per_s),
    ):
        rate_text = (
            "not shaped"
            if rate_gb_per_s is None
            else f"{rate_gb_per_s * 8 * rates.scale:.3g} Gbit/s for {rate_gb_per_s:g} GB/s"
        )
        echo(f"link {link}: {rate_text}")
    for process in cluster_status.running:
        echo(f"daemon {process.daemon}{f' of {process.host}' if process.host else ''}: process {process.pid}")
    for name in cluster_status.missing:
        echo(f"daemon {name}: missing; see {running_cluster.directory / 'log'}", fg="red")
    for host in cluster_status.hosts:
        echo(f"host {host.name}: {host.state}, {host.gres}")
    for job in cluster_status.jobs:
        echo(f"job {job.job_id}: {job.name}, {job.state}{f', {job.place}' if job.place else ''}")
    if not cluster_status.jobs:
        echo("no jobs")
    if cluster_status.missing:
        raise SystemExit(1)


@cluster.group()
def slurmd() -> None:
    """Stop or start the slurmd of a host, which recomposing its devices requires."""


@slurmd.command("stop")
@click.argument("host")
@_directory_option
def slurmd_stop(host: str, directory: Path | None) -> None:
    """Stop the slurmd of HOST if it is running. Jobs on the host will end."""
    practice_cluster = _find_cluster(directory, host)
    if daemons.find_processes(practice_cluster, "slurmd", host):
        daemons.stop_daemon(practice_cluster, "slurmd", host)
    echo(f"{host}: slurmd is stopped")


@slurmd.command("start")
@click.argument("host")
@click.option("--devices", type=click.IntRange(0), help="Number of devices that a dynamic host registers.")
@_directory_option
def slurmd_start(host: str, devices: int | None, directory: Path | None) -> None:
    """Start the slurmd of HOST if it is not running.

    To change the devices of a dynamic host, first delete it from Slurm: 'scontrol delete nodename=HOST'.
    """
    practice_cluster = _find_cluster(directory, host)
    if not daemons.find_processes(practice_cluster, "slurmd", host):
        daemons.start_daemon(practice_cluster, "slurmd", host, devices)
    echo(f"{host}: slurmd is started")


@cluster.command()
@_directory_option
def devices(directory: Path | None) -> None:
    """Print 'IDENTITY, MODEL' for each device that Slurm granted to this job on this host."""
    for device in list_granted_devices(_find_cluster(directory), os.environ):
        echo(f"{device.identity}, {device.model}")


def _resolve_directory(directory: Path | None) -> Path:
    """Return the directory of the selected cluster. The option takes precedence over SLURM_CONF, then the default."""
    if directory is not None:
        return directory
    practice_cluster = find_cluster_in_environment()
    return get_default_directory() if practice_cluster is None else practice_cluster.directory


def _find_cluster(directory: Path | None, host: str | None = None) -> Cluster:
    """Return the running cluster that is selected.

    Raises ConfigError if it has no host of this name.

    Args:
        directory: directory of the cluster; None for that of the environment, else the default.
        host: name of a host that the cluster must have; None for any.
    """
    # A job runs in the cluster, so its environment suffices.
    practice_cluster = (find_cluster_in_environment() if directory is None else None) or clusters.find_running_cluster(
        directory or get_default_directory()
    )
    names = [host_spec.name for host_spec in practice_cluster.spec.hosts]
    if host is not None and host not in names:
        raise ConfigError(
            f"{practice_cluster.directory}: the cluster has no host {host}; its hosts are: {', '.join(names)}"
        )
    return practice_cluster


def read_system_file(system: str) -> SystemFile:
    """Read and validate a system file by its path, or by its name under config/systems."""
    return load_system_file(system).model


def load_system_file(system: str) -> LoadedFile[SystemFile]:
    """Read and validate a system file, and keep its source for messages.

    Raises ConfigError if it is a file of another kind.

    Args:
        system: path of a system file, or its name under config/systems.
    """
    # Imported late, because commands that a job calls need no configuration.
    from campaign.plan.campaign.load import LoadedFile, detect_noun, load_named, validate
    from campaign.spec.system_file import SystemFile
    from campaign.spec.yaml_file import read_yaml

    path = Path(system)
    if path.suffix in {".yaml", ".yml"}:
        source = read_yaml(path)
        if (noun := detect_noun(source.data)) != "system":
            raise ConfigError(f"{path} is a {noun} file; give a system file, or a name that 'campaign systems' lists")
        return LoadedFile(validate(source, SystemFile), source)
    # Names are resolved as for a campaign in ./config.
    return load_named(SystemFile, system, Path("config/campaign.yaml"))
