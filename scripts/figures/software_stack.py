"""Table: software of the runs, by host or by environment of a workload, with differences between hosts."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_host_coverage,
    describe_undrawn,
    nothing,
)

TITLE = "Software stack"
SECTION = "Which software and hardware did the runs use?"
PART = APPARATUS
WITH = "workload-characteristics"
PLACE = 220
COUNTERPARTS = {
    "Falcon: Table I": "software stack",
    "FASTER: Section 2.2": "software stacks and containers",
}

# Packages that the page lists from an environment of hundreds. The data has all packages.
_KEY_PACKAGES = (
    "torch",
    "tensorflow",
    "horovod",
    "jax",
    "nccl",
    "cuda",
    "cudnn",
    "mpi",
    "numpy",
    "transformers",
    "python",
)
_KEY_PACKAGES += ("apex", "rocm")
_HOST_LABELS = {
    "system": "system",
    "machine": "architecture",
    "cpu": "processor",
    "python": "Python",
    "memory_gib": "memory (GiB)",
}
_HOST_LABELS |= {"cpus_usable": "usable processors"}
_HOSTS_PLACE = "hosts"
_IMPORT_PLACE = "imported logs"


def draw(data: FigureData) -> Drawing:
    """List the versions of software and the settings of hardware, by host and environment, with differences between hosts."""
    rows = _tabulate_software(data.context.get("environments") or {})
    if rows.empty:
        return nothing("no record lists its software")
    page = rows[rows["telling"]]
    left_out = len(rows) - len(page)
    import_text = "Imported runs: as stated in the import map." if (rows["where"] == _IMPORT_PLACE).any() else ""
    caption = (f"{import_text} Unknown versions are left out.{describe_undrawn(left_out, 'package', 'data')}").strip()
    environments = (data.context.get("environments") or {}).values()
    host_names = [
        document["host"] for document in environments if document.get("host") and "imported_by" not in document
    ]
    # Hosts that are emulated on one machine have its software.
    has_known_hosts = data.runs["host_names"].str.split(", ").explode().isin(host_names).any()
    return plot.build_drawing(
        data,
        page,
        None,
        {
            "Where": columns.text_column("where"),
            "Component": columns.text_column("component"),
            "Version": lambda row: _shorten_digest(row["version"]),
            "On": columns.text_column("on"),
            "Differs": lambda row: "differs" if row["differs"] else "",
        },
        data=rows,
        caption=caption,
        findings=_describe_differences(rows),
        coverage=describe_host_coverage(
            data.runs if has_known_hosts else data.runs.iloc[:0], host_names, "reported their software"
        ),
    )


def _shorten_digest(version: str) -> str:
    """Shorten a SHA-256 digest to 16 characters, which suffice to compare it. Other versions are returned unchanged."""
    return f"{version[:16]}…" if len(version) == 64 and version.isalnum() else version


def _tabulate_software(environments: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Build one row per place, component and version.

    Its columns are where, component, version, on (hosts, or hashes of environments), differs and telling.
    """
    versions_by_component: dict[tuple[str, str], dict[str, list[str]]] = {}
    sources_by_place: dict[str, list[str]] = {}
    # Hosts come first, because environments of programs have no names.
    order = sorted(environments.items(), key=lambda e: ("host" not in e[1], str(e[1].get("host", "")), e[0]))
    for name, document in order:
        is_program = "kind" in document or "launcher" in document
        place, source, parts = (_list_program_components if is_program else _list_host_components)(name, document)
        sources_by_place.setdefault(place, []).append(source)
        for component, version in parts:
            sources = versions_by_component.setdefault((place, component), {}).setdefault(version, [])
            if source not in sources:
                sources.append(source)
    rows = []
    for (place, component), versions in versions_by_component.items():
        source_count = len(dict.fromkeys(sources_by_place[place]))
        reporting_sources = {source for sources in versions.values() for source in sources}
        differs = len(versions) > 1 or len(reporting_sources) < source_count
        for version, sources in versions.items():
            is_key_package = any(word in component.lower() for word in (*_KEY_PACKAGES, "image", "module", "launcher"))
            is_shown = place in (_HOSTS_PLACE, _IMPORT_PLACE) or differs or is_key_package
            rows.append((place, component, version, ", ".join(sources), len(sources), differs, is_shown))
    names = ["where", "component", "version", "on", "n_on", "differs", "telling"]
    return pd.DataFrame(rows, columns=names)


def _list_host_components(name: str, document: Mapping[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the place, the name of the host, and pairs of component and version of a host's environment.

    Args:
        name: hash of the environment.
        document: environment document of the host.
    """
    parts = [(label, str(document[key])) for key, label in _HOST_LABELS.items() if document.get(key) is not None]
    parts += _parse_nvidia_smi(document.get("gpus") or ())
    parts += _list_device_settings(document.get("devices") or ())
    parts += sorted((str(name), str(value)) for name, value in (document.get("variables") or {}).items())
    parts += sorted((str(package), str(version)) for package, version in (document.get("packages") or {}).items())
    plain = {
        key: value
        for key, value in document.items()
        if key not in _HOST_LABELS and isinstance(value, str | int | float)
    }
    parts += [(key, str(value)) for key, value in plain.items() if key not in ("schema_version", "host")]
    if "imported_by" in document:  # its `host` is the name of the system, as the hosts are unknown
        return _IMPORT_PLACE, str(document.get("host") or name[:8]), parts
    return _HOSTS_PLACE, str(document.get("host") or name[:8]), parts


def _parse_nvidia_smi(lines: Any) -> list[tuple[str, str]]:
    """Summarise lines of nvidia-smi as pairs of component and value for models, driver and links.

    Args:
        lines: lines with index, UUID, name, memory, driver, and generation and width of PCIe.
    """
    line_fields = [[word.strip() for word in str(line).split(",")] for line in lines]
    complete_lines = [fields for fields in line_fields if len(fields) >= 7]
    if not complete_lines:
        return [("GPUs", str(line)) for line in lines]
    models = [f"{fields[2]}, {fields[3]}" for fields in complete_lines]
    counts_text = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    links = ", ".join(dict.fromkeys(f"gen {fields[5]} x{fields[6]}" for fields in complete_lines))
    return [
        ("GPUs", counts_text),
        ("GPU driver", ", ".join(dict.fromkeys(fields[4] for fields in complete_lines))),
        ("GPU links", links),
    ]


# Settings of GPUs that are not in the lines of nvidia-smi.
_SETTING_LABELS = {
    "power_limit_w": ("GPU power limit", " W"),
    "power_limit_default_w": ("GPU power limit, default", " W"),
    "clock_sm_application_mhz": ("GPU application clock", " MHz"),
    "clock_sm_max_mhz": ("GPU maximum clock", " MHz"),
    "persistence": ("GPU persistence", ""),
    "ecc": ("GPU ECC", ""),
    "mig": ("GPU partitioning (MIG)", ""),
    "compute_mode": ("GPU compute mode", ""),
    "pcie_width": ("GPU link width", ""),
}


def _list_device_settings(devices: Any) -> list[tuple[str, str]]:
    """Return pairs of setting and value for the devices of a host. Each value is listed once."""
    settings = []
    for name, (label, unit) in _SETTING_LABELS.items():
        values = [device[name] for device in devices if device.get(name) is not None]
        words = ["on" if value is True else "off" if value is False else f"{value}" for value in values]
        if words:
            settings.append((label, ", ".join(f"{word.removesuffix('.0')}{unit}" for word in dict.fromkeys(words))))
    return settings


def _list_program_components(name: str, document: Mapping[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the place, the short id, and pairs of component and version of a program's environment.

    Args:
        name: hash of the environment.
        document: environment document of a program or of a launcher.
    """
    kind = str(document.get("kind") or "launcher")
    origin = document.get("environment") or document.get("image") or document.get("directory") or ""
    parts = list(_list_environment_components(document))
    parts += sorted((str(package), str(version)) for package, version in (document.get("packages") or {}).items())
    return f"{kind} {str(origin).rsplit('/', 1)[-1]}".strip(), name[:8], parts


def _list_environment_components(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of component and version for image, launcher, modules and labels of an environment."""
    for key, component in (("sha256", "image (SHA-256)"), ("launcher", "launcher")):
        if document.get(key):
            yield component, str(document[key])
    if modules := document.get("loaded") or document.get("modules"):
        yield "modules", ", ".join(str(module) for module in modules)
    for label, value in sorted((document.get("labels") or {}).items()):
        yield f"image label {label}", str(value)


def _list_hosts(rows: pd.DataFrame) -> list[str]:
    """Return the names of all hosts with a known environment."""
    return sorted({host for names in rows.loc[rows["where"] == _HOSTS_PLACE, "on"] for host in names.split(", ")})


def _describe_differences(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on the components in which hosts differ, or a sentence that they are equal."""
    host_rows = rows[rows["where"] == _HOSTS_PLACE]
    sentences = []
    differing_rows = host_rows[host_rows["differs"]]
    for component, group in list(differing_rows.groupby("component", sort=False))[:5]:
        versions = "; ".join(f"{row['version']} on {row['on']}" for row in group.to_dict("records"))
        sentences.append(f"Hosts differ in {component}: {versions}.")
    remainder_count = differing_rows["component"].nunique() - len(sentences)
    if remainder_count > 0:
        sentences.append(f"They also differ in {wording.pluralize(remainder_count, 'further component')}.")
    if len(host_rows) and not sentences:
        hosts = _list_hosts(rows)
        sentences.append(
            f"The software is that of host {hosts[0]}."
            if len(hosts) == 1
            else f"Software and hardware are the same on {', '.join(hosts)}."
        )
    programs = rows.loc[~rows["where"].isin([_HOSTS_PLACE, _IMPORT_PLACE]), "where"].unique()
    if len(programs):
        sentences.append(f"These programs have their own environment: {', '.join(programs)}.")
    return tuple(sentences)
