"""A campaign with everything that its file names - systems, workloads, and configurations expanded from shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign.common.errors import ConfigError
from campaign.plan.campaign import workload_inputs
from campaign.plan.campaign.check import Sources, check
from campaign.plan.campaign.expand_shapes import Expanded, Impossible, expand_shapes
from campaign.plan.campaign.load import gathered, load_campaign_file, load_named, validate
from campaign.plan.campaign.primary_metric import primary_metric
from campaign.plan.campaign.probable_mistakes import in_campaign, in_system, in_workload, warn_of_unknown_scaling
from campaign.spec.campaign_file import NO_VERSION, CampaignFile, Protocol
from campaign.spec.cell import Configuration
from campaign.spec.fields import NAME_PATTERN, PATTERN_WORDS, as_typed
from campaign.spec.metric import Metric
from campaign.spec.record import CAMPAIGN_SCHEMA, campaigns_as_used
from campaign.spec.site_hardware import expand_host_names
from campaign.spec.system_file import DeviceModel, SlurmOptions, SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.protocol import Workload

if TYPE_CHECKING:
    from campaign.spec.published_file import ReferenceSet


@dataclass(frozen=True)
class Campaign:
    """A valid campaign with everything that its file names, or its part on one of several systems (`on`, `parts`).

    A lease, and every question about one configuration, belongs to a part.
    """

    path: Path
    file: CampaignFile
    systems: Mapping[str, SystemFile]
    """In the order of the file; of a part, too."""
    workloads: Mapping[str, Workload]
    configurations: tuple[Configuration, ...]
    impossible: tuple[Impossible, ...]
    sources: Sources = field(compare=False, repr=False)
    """The documents that it was read from, for places in messages."""
    person: SlurmOptions = field(default_factory=SlurmOptions)
    """What whoever started the campaign asks of Slurm; no part of the campaign as used."""
    inputs: workload_inputs.Inputs = field(default_factory=dict)
    """The input files of workloads, with the hashes of their content."""
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """How the logs of workloads were read when their runs were first measured, where they are read in another way now."""
    workload_dirs: Mapping[str, str] = field(default_factory=dict)
    """Where the files of workloads stand that say `{workload_dir}`."""
    references: tuple[ReferenceSet, ...] = ()
    """The sets of published claims that the file names."""
    warnings: tuple[str, ...] = ()
    """What is valid in its files and probably a mistake, with file, line and key."""
    part: str = ""
    """Name of the system that this is the part on; of a campaign with one system that one, of several '' for the whole."""

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def system(self) -> SystemFile:
        """System of the part, or the only system."""
        if not self.part:
            raise ValueError(f"campaign {self.name} has several systems: {', '.join(self.systems)}")
        return self.systems[self.part]

    @property
    def system_names(self) -> str:
        """Names of the systems, such as 'faster, grace'."""
        return ", ".join(self.systems)

    @property
    def currency(self) -> str | None:
        """Currency of the prices, or None if there are no prices or several currencies."""
        found = {system.currency for system in self.systems.values() if system.currency}
        return next(iter(found)) if len(found) == 1 else None

    @property
    def system_source(self) -> YamlFile:
        """The document of `system`."""
        return self.sources.systems[self.part]

    @property
    def parts(self) -> tuple[Campaign, ...]:
        """Parts of the campaign, one per system that has configurations."""
        return tuple(self.on(name) for name in dict.fromkeys(each.system for each in self.configurations))

    def on(self, of: str | Configuration) -> Campaign:
        """Return the part of the campaign on a system, with the configurations of that system.

        A part is returned unchanged.

        Args:
            target: name of the system, or a configuration on it.
        """
        name = of if isinstance(of, str) else of.system
        if self.part:
            return self
        return replace(self, part=name, configurations=tuple(c for c in self.configurations if c.system == name))

    def place(self, *location: str | int) -> str:
        """Format a place in the campaign's file as 'file:line: key'."""
        return self.sources.campaign.place(*location)

    @property
    def protocol(self) -> Protocol:
        return self.file.protocol

    def workload_identity(self, name: str) -> dict[str, Any]:
        """Return the content of a workload's file that is part of the identity of its cells.

        The first reading of its logs counts, so that reading measured logs in another way makes no other cells.
        """
        workload, first = self.workloads[name], self.readings.get(name)
        return workload.identity() if first is None else {**workload.runs(), **first}

    def labelled(self, version: str | None) -> Campaign:
        """Return a copy of the campaign with another version label.

        `none` removes the label; None returns the campaign unchanged. Raises ConfigError if the label is invalid.
        """
        if version is None:
            return self
        if re.fullmatch(NAME_PATTERN, version) is None or len(version) > 64:
            raise ConfigError(f"version: '{version}': a label has {PATTERN_WORDS[NAME_PATTERN]}; 64 characters at most")
        try:
            as_typed(version)
        except ValueError as error:
            raise ConfigError(f"version: {error}") from error
        label = None if version == NO_VERSION else version
        return replace(self, file=self.file.model_copy(update={"version": label}))

    def without_hosts(self, text: str) -> Campaign:
        """Return a copy of the campaign whose systems must not compose some hosts.

        Raises ConfigError if no system has one of the hosts, or if no host of a system remains.

        Args:
            text: names of the hosts, such as `host3` or `host[3-4],host8`.
        """
        try:
            out = {name for each in re.split(r",(?![^\[]*\])", text) for name in expand_host_names(each.strip())}
        except ValueError as error:
            raise ConfigError(f"--without-hosts: {error}") from error
        known = [name for system in self.systems.values() for group in system.hosts for name in group.names()]
        if unknown := sorted(out.difference(known)):
            raise ConfigError(f"--without-hosts: no host {unknown[0]}; there are: {', '.join(known)}")
        systems: dict[str, SystemFile] = {}
        for name, system in self.systems.items():
            left = tuple(host for host in system.usable_hosts() if host not in out)
            if not left:
                raise ConfigError(f"--without-hosts {text}: leaves no host of {name}; name fewer")
            allowed = left if len(left) < len(system.usable_hosts()) else system.tenancy.allowed_hosts
            tenancy = system.tenancy.model_copy(update={"allowed_hosts": allowed})
            systems[name] = system.model_copy(update={"tenancy": tenancy})
        return replace(self, systems=systems)

    @property
    def metric(self) -> Metric:
        """Primary metric, which figures, tables and comparisons show."""
        return primary_metric(self.file, self.workloads)

    def shape_of(self, configuration: str) -> int:
        """Return the position in the campaign's file of the shape that makes a configuration."""
        return self._expanded.shapes[configuration][0]

    @cached_property
    def _expanded(self) -> Expanded:
        return expand_shapes(self.file.configurations, tuple(self.systems.values()), self.sources.campaign)

    def repeated_shapes(self) -> Iterator[str]:
        """Yield a warning per shape that only makes configurations of earlier shapes."""
        return self._expanded.repeated(self.sources.campaign.place)

    def device(self, model: str) -> DeviceModel:
        """Return the entry of a device model in the system file, or the default entry."""
        return self.system.devices.get(model, DeviceModel())

    def device_of(self, configuration: Configuration) -> DeviceModel:
        """Return the entry of a configuration's device model in its system file, or the default entry."""
        return self.on(configuration).device(configuration.device)

    def document(self) -> dict[str, Any]:
        """Return the campaign as used as a JSON-serialisable dict, with all defaults filled in."""
        gone = {"system" if self.file.systems else "systems"}
        gone |= {
            key for key in ("version", "report") if getattr(self.file, key) == type(self.file).model_fields[key].default
        }
        document: dict[str, Any] = {
            "schema_version": CAMPAIGN_SCHEMA,
            "campaign": self.file.model_dump(mode="json", exclude=gone),
            **self._systems(),
            "workloads": {name: workload.model_dump(mode="json") for name, workload in sorted(self.workloads.items())},
        }
        beside = {
            "inputs": workload_inputs.document(self.inputs),
            "readings": {name: dict(first) for name, first in self.readings.items()},
            "workload_dirs": dict(self.workload_dirs),
            "references": [each.model_dump(mode="json") for each in self.references],
        }
        return {**document, **{name: each for name, each in beside.items() if each}}

    def _systems(self) -> dict[str, Any]:
        documents = {name: system.model_dump(mode="json") for name, system in self.systems.items()}
        return {"systems": documents} if self.file.systems else {"system": documents[self.part]}


def systems_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the systems of a stored campaign by name, in the order of its file."""
    if "systems" in document:
        return {name: document["systems"][name] for name in document["campaign"]["systems"]}
    return {str(document["campaign"].get("system")): document["system"]}


def load_campaign(
    path: Path,
    launcher: str | None = None,
    person: SlurmOptions | None = None,
    *,
    run_implied: bool = False,
    results: Path | None = None,
    version: str | None = None,
) -> Campaign:
    """Read a campaign and the files that it names.

    Raises ConfigError, which lists each problem with its place and the allowed values.

    Args:
        path: a campaign file, or a directory of results, whose campaign is read as it was planned there.
        launcher: launcher of the runs instead of that in the system file (from a Snakemake profile).
        person: Slurm options of the allocations, from the same source.
        run_implied: whether runs that a smaller batch implies are run all the same.
        results: directory of all results; its plan and records give the measured content of files that are gone.
        version: version label, as in `with_version`.
    """
    if path.is_dir():
        return _planned_in(path, launcher, person, run_implied).labelled(version)
    campaign = load_campaign_file(path)
    named, place = list(dict.fromkeys(campaign.model.axes.workload)), campaign.source.place
    calls: list[Callable[[], Any]] = [
        *(
            partial(load_named, SystemFile, name, path, place("systems" if campaign.model.systems else "system"))
            for name in campaign.model.system_names
        ),
        *(partial(load_named, Workload, name, path, place("axes", "workload")) for name in named),
        *(
            partial(_read_reference, name, path, place("references"))
            for name in dict.fromkeys(campaign.model.references)
        ),
    ]
    loaded = gathered(calls)
    systems, others = loaded[: len(campaign.model.system_names)], loaded[len(campaign.model.system_names) :]
    workloads, references = dict(zip(named, others, strict=False)), others[len(named) :]
    file = _running_implied(campaign.model) if run_implied else campaign.model
    models = {name: workload.model for name, workload in workloads.items()}
    sources = Sources(
        campaign.source,
        {system.model.name: system.source for system in systems},
        {name: workload.source for name, workload in workloads.items()},
    )
    used = [_launched_by(launcher, system.model) for system in systems]
    campaign_as_used = resolve(path, file, used, models, sources)
    # What was imported was measured elsewhere, by programs that are not here.
    measured = workload_inputs.MeasuredWorkloads(path, results and results / file.name)
    inputs = {} if file.imported else workload_inputs.read_inputs(path, models, file.axes.options, sources, measured)
    first = {name: measured.reading(model) for name, model in models.items() if model.reading_keys}
    return replace(
        campaign_as_used.labelled(version),
        person=person or SlurmOptions(),
        references=tuple(references),
        inputs=inputs,
        readings={name: reading for name, reading in first.items() if reading is not None},
        workload_dirs={} if file.imported else workload_inputs.workload_dirs(models, sources),
        warnings=(
            *in_campaign(file, models, sources.campaign),
            *campaign_as_used.repeated_shapes(),
            *warn_of_unknown_scaling(
                campaign_as_used.metric, campaign_as_used.configurations, models, sources.campaign
            ),
            *chain.from_iterable(map(in_system, sources.systems.values())),
            *chain.from_iterable(map(in_workload, models.values(), sources.workloads.values())),
        ),
    )


def _running_implied(file: CampaignFile) -> CampaignFile:
    return file.model_copy(update={"protocol": file.protocol.model_copy(update={"skip_implied": False})})


def _launched_by(launcher: str | None, system: SystemFile) -> SystemFile:
    return system if launcher is None else system.model_copy(update={"launcher": launcher})


def _planned_in(directory: Path, launcher: str | None, person: SlurmOptions | None, run_implied: bool) -> Campaign:
    """Load the campaign of a results directory as it was planned or measured there.

    The campaign gets the present name of the directory.
    """
    if (document := next(campaigns_as_used(directory), None)) is None:
        several = sorted(path.name for path in directory.glob("*") if path.is_dir() and any(campaigns_as_used(path)))
        holds = f"holds the results of {', '.join(several)}; name one, such as {directory / several[0]}" if several else (
            "holds no results of a campaign; name a campaign file, the results directory of a campaign, or an archive"
        )  # fmt: skip
        raise ConfigError(f"{directory}: {holds}")
    campaign = from_document(document)
    file = campaign.file.model_copy(update={"name": directory.resolve().name})
    return replace(
        campaign,
        path=directory,
        file=_running_implied(file) if run_implied else file,
        systems={name: _launched_by(launcher, system) for name, system in campaign.systems.items()},
        person=person or SlurmOptions(),
    )


def _read_reference(name: str, path: Path, place: str) -> ReferenceSet:
    from campaign.spec.published_file import load  # few campaigns name claims, and its models take time to build

    return load(name, path.parent, f"{place}: ")


def from_document(document: Mapping[str, Any]) -> Campaign:
    """Build the campaign that `Campaign.to_document` returns.

    Raises ConfigError if the document is damaged or has another schema version.
    """
    if document.get("schema_version") != CAMPAIGN_SCHEMA:
        raise ConfigError(
            f"the stored campaign has schema {document.get('schema_version')!r}; this version reads {CAMPAIGN_SCHEMA}"
        )
    try:
        name = Path(document["campaign"]["name"])
        stored = {key: _without_predictions(system) for key, system in systems_of(document).items()}
        sources = Sources(
            YamlFile(name, _without_check(document["campaign"]), {}),
            {key: YamlFile(name, system, {}) for key, system in stored.items()},
            {key: YamlFile(name, workload, {}) for key, workload in document["workloads"].items()},
        )
        if other := [
            each for each in (*sources.systems.values(), *sources.workloads.values()) if type(each.data) is not dict
        ]:
            raise TypeError(other[0].data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the stored campaign is damaged ({error!r}); restore it from an archive") from error
    file = validate(sources.campaign, CampaignFile)
    systems = [validate(source, SystemFile, key, stored=True) for key, source in sources.systems.items()]
    workloads = {key: validate(source, Workload, key) for key, source in sources.workloads.items()}
    if lacking := {*file.system_names, *file.axes.workload} - {*sources.systems, *workloads}:
        raise ConfigError(f"the stored campaign is damaged (it has no {min(lacking)}); restore it from an archive")
    campaign = resolve(name, file, systems, workloads, sources, stored=True)
    inputs = workload_inputs.from_document(document.get("inputs", {}))
    readings = workload_inputs.first_readings(document, workloads)
    campaign = replace(campaign, inputs=inputs, readings=readings, workload_dirs=document.get("workload_dirs") or {})
    if not document.get("references"):
        return campaign
    from campaign.spec.published_file import from_document as reference_set

    references = (reference_set(each, f"{name}: references") for each in document["references"])
    return replace(campaign, references=tuple(references))


def stored_system(system: Any) -> SystemFile:
    """Return a system as a stored campaign has it. Raises ValidationError if it is no system."""
    return SystemFile.model_validate(_without_predictions(system))


def _without_check(campaign: Any) -> Any:
    """Return a stored campaign without `protocol: check`, by which earlier versions checked devices."""
    if type(campaign) is not dict or "protocol" not in campaign:
        return campaign
    return {**campaign, "protocol": _without(campaign["protocol"], "check")}


def _without_predictions(system: Any) -> Any:
    """Return a stored system without the keys that earlier versions had for predictions."""
    if type(system) is not dict:
        return system
    kept = {name: value for name, value in system.items() if name != "parameters"}
    if "emulation" in kept:
        kept["emulation"] = _without(kept["emulation"], "dilation")
    for name, key in (("devices", "memory_gib"), ("links", "uses")):
        if type(entries := kept.get(name)) is dict:
            kept[name] = {entry: _without(each, key) for entry, each in entries.items()}
    return kept


def _without(document: Any, key: str) -> Any:
    """Return a document without one of its keys; anything else as it is."""
    return {name: each for name, each in document.items() if name != key} if type(document) is dict else document


def resolve(
    path: Path,
    file: CampaignFile,
    systems: Sequence[SystemFile],
    workloads: Mapping[str, Workload],
    sources: Sources,
    *,
    stored: bool = False,
) -> Campaign:
    """Check campaign, systems and workloads against each other, and build the campaign.

    Raises ConfigError, which lists every contradiction.

    Args:
        path: path of the campaign file.
        file: content of the campaign file.
        systems: content of the system files.
        workloads: content of the workload files, by name.
        sources: the documents behind them, for lines in messages.
        stored: see `check_campaign`.
    """
    expanded = expand_shapes(file.configurations, systems, sources.campaign)
    configurations = expanded.configurations
    check(file, systems, workloads, configurations, sources, stored=stored)
    if file.axes.configuration:
        configurations = tuple(c for c in configurations if c.name in file.axes.configuration)
    by_name = {system.name: system for system in systems}
    part = systems[0].name if len(systems) == 1 else ""
    return Campaign(path, file, by_name, workloads, configurations, expanded.impossible, sources, part=part)
