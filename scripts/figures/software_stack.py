"""Table: software of the runs, by host or by environment of a workload, with differences between hosts."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import APPARATUS, Drawing, FigureData, coverage_of_hosts, nothing

TITLE = "Software stack"
SECTION = "Which software and hardware did the runs use? Hosts that differ are named."
PART = APPARATUS
PLACE = 220
COUNTERPARTS = {
    "Falcon: Table I": "software stack",
    "FASTER: Section 2.2": "software stacks and containers",
}

# Packages that readers look for in an environment of hundreds. The data has all of them.
_TELLING = ("torch", "tensorflow", "horovod", "jax", "nccl", "cuda", "cudnn", "mpi", "numpy", "transformers", "python")
_TELLING += ("apex", "rocm")
_HOST = {
    "system": "system",
    "machine": "architecture",
    "cpu": "processor",
    "python": "Python",
    "memory_gib": "memory (GiB)",
}
_HOST |= {"cpus_usable": "usable processors"}
_OF_HOSTS = "hosts"
_OF_IMPORT = "imported logs"


def draw(data: FigureData) -> Drawing:
    """List the versions of software and the settings of hardware, by host and environment, with differences between hosts."""
    rows = _rows(data.context.get("environments") or {})
    if rows.empty:
        return nothing("no record names its software")
    page = rows[rows["telling"]]
    left_out = len(rows) - len(page)
    more = f" {wording.plural(left_out, 'further package')} in the data." if left_out else ""
    hosts = _hosts(rows)
    found = f"As found on {wording.plural(len(hosts), 'host')} when runs were measured." if hosts else ""
    stated = "As the map of the import states it." if (rows["where"] == _OF_IMPORT).any() else ""
    caption = f"{' '.join(filter(None, (found, stated)))} Unknown versions are absent.{more}".strip()
    environments = (data.context.get("environments") or {}).values()
    known = [each["host"] for each in environments if each.get("host") and "imported_by" not in each]
    return plot.drawn(
        data,
        page,
        None,
        {
            "Where": columns.text("where"),
            "Component": columns.text("component"),
            "Version": lambda row: _short(row["version"]),
            "On": columns.text("on"),
            "Differs": lambda row: "differs" if row["differs"] else "",
        },
        data=rows,
        caption=caption,
        findings=_findings(rows),
        coverage=coverage_of_hosts(data.runs, known, "reported their software"),
    )


def _short(version: str) -> str:
    """Shorten a SHA-256 digest to 16 characters, which suffice to compare it. Other versions are returned unchanged."""
    return f"{version[:16]}…" if len(version) == 64 and version.isalnum() else version


def _rows(environments: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Build one row per place, component and version.

    Its columns are where, component, version, on (hosts, or hashes of environments), differs and telling.
    """
    known: dict[tuple[str, str], dict[str, list[str]]] = {}
    of_place: dict[str, list[str]] = {}
    # Hosts come first, because environments of programs have no names.
    order = sorted(environments.items(), key=lambda e: ("host" not in e[1], str(e[1].get("host", "")), e[0]))
    for name, document in order:
        of_software = "kind" in document or "launcher" in document
        where, who, parts = (_of_software if of_software else _of_host)(name, document)
        of_place.setdefault(where, []).append(who)
        for component, version in parts:
            on = known.setdefault((where, component), {}).setdefault(version, [])
            if who not in on:
                on.append(who)
    rows = []
    for (where, component), versions in known.items():
        everybody = len(dict.fromkeys(of_place[where]))
        there = {who for on in versions.values() for who in on}
        differs = len(versions) > 1 or len(there) < everybody
        for version, on in versions.items():
            named = any(word in component.lower() for word in (*_TELLING, "image", "module", "launcher"))
            telling = where in (_OF_HOSTS, _OF_IMPORT) or differs or named
            rows.append((where, component, version, ", ".join(on), len(on), differs, telling))
    names = ["where", "component", "version", "on", "n_on", "differs", "telling"]
    return pd.DataFrame(rows, columns=names)


def _of_host(name: str, document: Mapping[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the place, the name of the host, and pairs of component and version of a host's environment.

    Args:
        name: hash of the environment.
        document: environment document of the host.
    """
    parts = [(says, str(document[key])) for key, says in _HOST.items() if document.get(key) is not None]
    parts += _gpus(document.get("gpus") or ())
    parts += _settings(document.get("devices") or ())
    parts += sorted((str(name), str(value)) for name, value in (document.get("variables") or {}).items())
    parts += sorted((str(package), str(version)) for package, version in (document.get("packages") or {}).items())
    plain = {key: value for key, value in document.items() if key not in _HOST and isinstance(value, str | int | float)}
    parts += [(key, str(value)) for key, value in plain.items() if key not in ("schema_version", "host")]
    if "imported_by" in document:  # its `host` is the name of the system, as the hosts are unknown
        return _OF_IMPORT, str(document.get("host") or name[:8]), parts
    return _OF_HOSTS, str(document.get("host") or name[:8]), parts


def _gpus(lines: Any) -> list[tuple[str, str]]:
    """Summarise lines of nvidia-smi as pairs of component and value for models, driver and links.

    Args:
        lines: lines with index, UUID, name, memory, driver, and generation and width of PCIe.
    """
    words = [[word.strip() for word in str(line).split(",")] for line in lines]
    whole = [each for each in words if len(each) >= 7]
    if not whole:
        return [("GPUs", str(line)) for line in lines]
    models = [f"{each[2]}, {each[3]}" for each in whole]
    counted = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    links = ", ".join(dict.fromkeys(f"gen {each[5]} x{each[6]}" for each in whole))
    return [
        ("GPUs", counted),
        ("GPU driver", ", ".join(dict.fromkeys(each[4] for each in whole))),
        ("GPU links", links),
    ]


# Settings of GPUs that are not in the lines of nvidia-smi.
_SETTINGS = {
    "power_limit_w": ("GPU power limit", " W"),
    "power_limit_default_w": ("GPU power limit, default", " W"),
    "clock_sm_application_mhz": ("GPU clock, set", " MHz"),
    "clock_sm_max_mhz": ("GPU clock, most", " MHz"),
    "persistence": ("GPU persistence", ""),
    "ecc": ("GPU ECC", ""),
    "mig": ("GPU divided (MIG)", ""),
    "compute_mode": ("GPU compute mode", ""),
    "pcie_width": ("GPU link width", ""),
}


def _settings(devices: Any) -> list[tuple[str, str]]:
    """Return pairs of setting and value for the devices of a host. Each value is listed once."""
    found = []
    for name, (says, unit) in _SETTINGS.items():
        values = [each[name] for each in devices if each.get(name) is not None]
        words = ["on" if value is True else "off" if value is False else f"{value}" for value in values]
        if words:
            found.append((says, ", ".join(f"{word.removesuffix('.0')}{unit}" for word in dict.fromkeys(words))))
    return found


def _of_software(name: str, document: Mapping[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the place, the short id, and pairs of component and version of a program's environment.

    Args:
        name: hash of the environment.
        document: environment document of a program or of a launcher.
    """
    kind = str(document.get("kind") or "launcher")
    which = document.get("environment") or document.get("image") or document.get("directory") or ""
    parts = list(_environment(document))
    parts += sorted((str(package), str(version)) for package, version in (document.get("packages") or {}).items())
    return f"{kind} {str(which).rsplit('/', 1)[-1]}".strip(), name[:8], parts


def _environment(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of component and version for image, launcher, modules and labels of an environment."""
    for key, says in (("sha256", "image (SHA-256)"), ("launcher", "launcher")):
        if document.get(key):
            yield says, str(document[key])
    if modules := document.get("loaded") or document.get("modules"):
        yield "modules", ", ".join(str(each) for each in modules)
    for label, value in sorted((document.get("labels") or {}).items()):
        yield f"image label {label}", str(value)


def _hosts(rows: pd.DataFrame) -> list[str]:
    """Return the names of all hosts with a known environment."""
    return sorted({host for each in rows.loc[rows["where"] == _OF_HOSTS, "on"] for host in each.split(", ")})


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on the components in which hosts differ, or a sentence that they are equal."""
    of_hosts = rows[rows["where"] == _OF_HOSTS]
    said = []
    different = of_hosts[of_hosts["differs"]]
    for component, group in list(different.groupby("component", sort=False))[:5]:
        versions = "; ".join(f"{row['version']} on {row['on']}" for row in group.to_dict("records"))
        said.append(f"Hosts differ in {component}: {versions}.")
    more = different["component"].nunique() - len(said)
    if more > 0:
        said.append(f"They differ in {wording.plural(more, 'further component')}.")
    if len(of_hosts) and not said:
        hosts = _hosts(rows)
        said.append(
            f"All runs were made on host {hosts[0]}."
            if len(hosts) == 1
            else f"Software and hardware are equal on {', '.join(hosts)}."
        )
    others = rows.loc[~rows["where"].isin([_OF_HOSTS, _OF_IMPORT]), "where"].unique()
    if len(others):
        said.append(f"Programs with an environment of their own: {', '.join(others)}.")
    return tuple(said)
