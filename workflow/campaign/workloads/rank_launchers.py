"""Command lines that start the ranks of an external program in its software environment.

mpirun (Open MPI 5, MPICH 5), torchrun and srun were tested on two emulated hosts of a real Slurm, but not on real hosts.
horovodrun, conda, Apptainer and modules were not tested; their command lines follow their documentation.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from campaign.workloads.protocol import Run
from campaign.workloads.software import Software, build_software_words

LaunchMethod = Literal["once", "per_rank", "srun", "mpirun", "horovodrun", "torchrun"]

RUN_MARK_VARIABLES = ("CAMPAIGN_RUN", "CAMPAIGN_RUN_RANK")
"""Environment variables by which the processes of a run are found, including those that mpirun starts on other hosts."""


class CommandLine(NamedTuple):
    """Command line of a step. `program_at` and `wrapped_ranks` are described at `Step`."""

    argv: tuple[str, ...]
    program_at: int | None
    wrapped_ranks: int


def build_command_line(
    run: Run,
    launch: LaunchMethod,
    mpi: str | None,
    software: Software | None,
    options: Sequence[str],
    program: Sequence[str],
    environment: Iterable[str],
) -> CommandLine:
    """Build the command line that starts a program's ranks through a launcher in its software environment.

    mpirun and horovodrun are taken from the software environment, unless it is a container image, because images rarely contain
    the MPI that the site's network needs. In that case they are taken from the host, and start the containers.

    Args:
        run: the run that the step belongs to.
        launch: method that starts the ranks.
        mpi: MPI implementation that mpirun belongs to; None for Open MPI.
        software: software environment, with names filled in.
        options: options of the launcher, with names filled in.
        program: program and arguments, with names filled in.
        environment: names of the environment variables that the ranks need.
    """
    rank_wrapper = build_software_words(software, runs_on=run.runs_on)  # words that start each rank
    launcher_wrapper: list[str] = []
    if launch in ("mpirun", "horovodrun") and not (software and software.apptainer):
        launcher_wrapper, rank_wrapper = rank_wrapper, launcher_wrapper
    hosts = ",".join(f"{host}:{count}" for host, count in run.ranks_by_host.items())
    slurm, ranks = run.launcher == "slurm", str(sum(run.ranks_by_host.values()))
    match launch:
        case "mpirun" if mpi == "mpich":
            # Hydra passes the whole environment to its ranks.
            words = ["mpirun", "-n", ranks, *(["-hosts", hosts] if slurm else []), *options, *rank_wrapper]
        case "mpirun":
            placement = ["-H", hosts, "--map-by", "slot"] if slurm else ["--oversubscribe"]
            names = _list_exported_variables(software, environment, slurm)
            words = [
                "mpirun",
                "-np",
                ranks,
                *placement,
                *(word for name in names for word in ("-x", name)),
                *options,
                *rank_wrapper,
            ]
        case "horovodrun":
            words = [
                "horovodrun",
                "-np",
                ranks,
                "-H",
                hosts if slurm else f"localhost:{ranks}",
                *options,
                *rank_wrapper,
            ]
        case "torchrun" if slurm and len(run.ranks_by_host) > 1:
            words = [*_build_torchrun_words(run, rank_wrapper), *options]
        case "torchrun":
            words = [*rank_wrapper, "torchrun", "--standalone", f"--nproc-per-node={ranks}", *options]
        case _:
            words = rank_wrapper
    if launch == "torchrun":  # torchrun starts Python files itself, so only its own start can be marked
        program_at = words.index("torchrun")
        wrapped_ranks = len(run.ranks_by_host) if words[0] == "srun" else 1
    else:
        program_at = len(launcher_wrapper) + len(words)
        wrapped_ranks = 1 if launch == "once" else int(ranks)
    return CommandLine((*launcher_wrapper, *words, *program), program_at or None, wrapped_ranks)


def _list_exported_variables(software: Software | None, environment: Iterable[str], slurm: bool) -> list[str]:
    """List the names of the environment variables that mpirun has to pass on to ranks on other hosts.

    CAMPAIGN_RUN_RANK is only included with Slurm, because only Slurm's launcher marks each rank of a host separately.
    """
    changed_variables = ["PATH"] if software is not None and software.apptainer is None else []
    changed_variables += ["LD_LIBRARY_PATH"] if software is not None and software.modules else []
    return list(
        dict.fromkeys((*environment, *changed_variables, *(RUN_MARK_VARIABLES if slurm else RUN_MARK_VARIABLES[:1])))
    )


def _build_torchrun_words(run: Run, rank_wrapper: Sequence[str]) -> list[str]:
    """Build the part of a command line that starts torchrun once per host through srun."""
    hosts = list(run.ranks_by_host)
    return [
        "srun",
        f"--nodes={len(hosts)}",
        f"--nodelist={','.join(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        # The step that starts torchrun already holds the devices.
        "--overlap",
        "--mem=0",
        "--export=ALL",
        *rank_wrapper,
        "torchrun",
        f"--nnodes={len(hosts)}",
        f"--nproc-per-node={run.ranks_by_host[hosts[0]]}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={hosts[0]}:{find_free_port()}",
        f"--rdzv-id={run.cell.id}.{run.repetition}",
    ]


def find_free_port(address: str = "") -> int:
    """Find a TCP port that is currently free.

    Args:
        address: address of the interface; an empty string for all interfaces.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
