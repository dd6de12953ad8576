"""The cluster's configuration files, from the templates in envs/cluster. Pure but for reading the templates."""

from __future__ import annotations

import shlex
import sys

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from campaign.launch.emulation.cluster_spec import Cluster
from campaign.paths import ROOT

TEMPLATES = ROOT / "envs" / "cluster"
PROGRAMS = ROOT / "envs" / "slurm"
"""What Slurm calls to have hosts composed; the same files as on a site's own cluster."""
_FILES = {
    "slurm.conf": "etc/slurm.conf",
    "gres.conf": "etc/gres.conf",
    "cgroup.conf": "etc/cgroup.conf",
    "slurmdbd.conf": "etc/slurmdbd.conf",
    "my.cnf": "etc/my.cnf",
    "hosts": "etc/hosts",
    "on-host": "bin/on-host",
    "settings": "bin/settings",
}


def render(cluster: Cluster) -> dict[str, str]:
    """Text of every configuration file, by its path in the cluster's directory."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    spec = cluster.spec
    static = [host.name for host in spec.hosts if host.registration != "dynamic"]
    dynamic = len(static) < len(spec.hosts)
    words = {
        **{name: getattr(spec, name) for name in type(spec).model_fields},
        "directory": cluster.directory,
        "control_address": cluster.control_address,
        "addresses": cluster.addresses,
        "gres": spec.gres,
        "dynamic": dynamic,
        "cloud": any(host.registration == "cloud" for host in spec.hosts),
        "campaign": shlex.join([sys.executable, "-m", "campaign.cli.main"]),
        "members": ",".join([*static, *(["composed"] if dynamic else [])]),
        "memory_per_cpu_mib": spec.memory_mib // spec.cpus,
        "inner_prefixes": {host.name: shlex.join(cluster.held.inner_prefix(host.name)) for host in spec.hosts},
    }
    return {path: templates.get_template(name).render(words) for name, path in _FILES.items()}
