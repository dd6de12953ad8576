"""The devices that Slurm granted to a step on this host, as the tools of a real host would list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from campaign.errors import LaunchError
from campaign.launch.emulation.cluster_spec import Cluster


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a host; identity: HOST/gpuN, the Nth device file of the host."""

    identity: str
    model: str


def granted(cluster: Cluster, environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Devices that Slurm granted to the step with this environment, on the host that it runs on.

    LaunchError: it is no step of this cluster, or Slurm granted what the host does not have.
    """
    host = environment.get("SLURMD_NODENAME")
    if host is None or host not in cluster.addresses:
        raise LaunchError("run this in a job of the cluster: `srun --gres=gpu:2 campaign cluster devices`")
    indices = [int(word) for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.isdigit()]
    # What is granted has to exist: Slurm also grants devices that it was only told of.
    if lost := [index for index in indices if not (cluster.directory / "devices" / host / f"gpu{index}").exists()]:
        raise LaunchError(f"{host}: was granted device {', '.join(map(str, lost))}, which does not exist")
    return tuple(Device(f"{host}/gpu{index}", cluster.spec.model) for index in indices)
