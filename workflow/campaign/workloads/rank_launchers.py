"""The words that start a foreign program's ranks, and those that put it into its software environment.

mpirun (Open MPI 5, MPICH 5), torchrun and srun were tried over two emulated hosts of a real Slurm, none of them on real ones;
horovodrun, conda, Apptainer and modules were not tried: their documentation says what they take.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from campaign.workloads.software import Software, software_words

Launch = Literal["once", "per_rank", "srun", "mpirun", "horovodrun", "torchrun"]

MARKS = ("CAMPAIGN_RUN", "CAMPAIGN_RUN_RANK")
"""Variables by which a run's processes are found; those that mpirun starts elsewhere have to have them, too."""


@dataclass(frozen=True)
class Job:
    """What a launcher is told of a run.

    ranks_by_host: in the order of ranks; launcher: who starts the step; exported: variables that the ranks need; port: free on the
    first host; name: of the run.
    """

    launch: Launch
    mpi: str | None
    ranks_by_host: Mapping[str, int]
    launcher: Literal["local", "slurm"]
    cuda: bool
    exported: Sequence[str]
    port: int
    name: str

    @property
    def ranks(self) -> int:
        return sum(self.ranks_by_host.values())


def command_line(
    software: Software | None, options: Sequence[str], program: Sequence[str], job: Job
) -> tuple[str, ...]:
    """The argv of a step, with the launcher's words and those of the software environment where each belongs.

    software, options (for the launcher) and program have all names filled in. mpirun and horovodrun come from the environment, but
    start containers themselves: an image seldom holds the MPI that the site's network needs.
    """
    outside, inside = [], software_words(software, cuda=job.cuda)
    if job.launch in ("mpirun", "horovodrun") and not (software and software.apptainer):
        outside, inside = inside, outside
    return (*outside, *_with_launcher(job, options, inside), *program)


def exported(software: Software | None, environment: Iterable[str], launcher: str) -> list[str]:
    """Variables that mpirun has to give to ranks on other hosts. launcher: only Slurm's marks each rank of a host apart."""
    changed = ["PATH"] if software is not None and software.apptainer is None else []
    changed += ["LD_LIBRARY_PATH"] if software is not None and software.modules else []
    return list(dict.fromkeys((*environment, *changed, *(MARKS if launcher == "slurm" else MARKS[:1]))))


def _with_launcher(job: Job, options: Sequence[str], inside: Sequence[str]) -> list[str]:
    """The words before the program. inside: those that each rank is started through."""
    hosts = ",".join(f"{host}:{count}" for host, count in job.ranks_by_host.items())
    slurm, ranks = job.launcher == "slurm", str(job.ranks)
    match job.launch:
        case "mpirun" if job.mpi == "mpich":
            # Hydra gives its ranks the whole environment.
            return ["mpirun", "-n", ranks, *(["-hosts", hosts] if slurm else []), *options, *inside]
        case "mpirun":
            where = ["-H", hosts, "--map-by", "slot"] if slurm else ["--oversubscribe"]
            variables = [word for name in job.exported for word in ("-x", name)]
            return ["mpirun", "-np", ranks, *where, *variables, *options, *inside]
        case "horovodrun":
            return ["horovodrun", "-np", ranks, "-H", hosts if slurm else f"localhost:{ranks}", *options, *inside]
        case "torchrun" if slurm and len(job.ranks_by_host) > 1:
            return [*_torchrun_over_hosts(job, inside), *options]
        case "torchrun":
            return [*inside, "torchrun", "--standalone", f"--nproc-per-node={ranks}", *options]
        case _:
            return [*inside]


def _torchrun_over_hosts(job: Job, inside: Sequence[str]) -> list[str]:
    hosts = list(job.ranks_by_host)
    return [
        "srun",
        f"--nodes={len(hosts)}",
        f"--nodelist={','.join(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        # The step that starts this holds the devices, too.
        "--overlap",
        "--mem=0",
        "--export=ALL",
        *inside,
        "torchrun",
        f"--nnodes={len(hosts)}",
        f"--nproc-per-node={job.ranks_by_host[hosts[0]]}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={hosts[0]}:{job.port}",
        f"--rdzv-id={job.name}",
    ]


def free_port(address: str = "") -> int:
    """A TCP port that is free now; address: an empty one means every interface."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
