"""Campaign with everything that its file names: systems, workloads, and configurations expanded from shapes."""

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
from campaign.plan.campaign.check import Sources, check_campaign
from campaign.plan.campaign.expand_shapes import Impossible, ShapeExpansion, expand_shapes
from campaign.plan.campaign.load import collect_results, load_campaign_file, load_named, validate
from campaign.plan.campaign.primary_metric import choose_primary_metric
from campaign.plan.campaign.probable_mistakes import (
    warn_of_campaign,
    warn_of_system,
    warn_of_unknown_scaling,
    warn_of_workload,
)
from campaign.spec.campaign_file import NO_VERSION, CampaignFile, Protocol
from campaign.spec.cell import Configuration
from campaign.spec.fields import NAME_PATTERN, PATTERN_WORDS, check_label_spelling
from campaign.spec.metric import Metric
from campaign.spec.record import CAMPAIGN_SCHEMA, read_campaigns_as_used
from campaign.spec.site_hardware import expand_host_names
from campaign.spec.system_file import DeviceModel, SlurmOptions, SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.protocol import Workload

if TYPE_CHECKING:
    from campaign.spec.published_file import ReferenceSet


@dataclass(frozen=True)
class Campaign:
    """A valid campaign with everything that its file names, or its part on one of several systems (`part_on`, `parts`).

    Every lease and every configuration belongs to one part.
    """

    path: Path
    file: CampaignFile
    systems: Mapping[str, SystemFile]
    """Systems by name in the order of the file. A part has all systems, too."""
    workloads: Mapping[str, Workload]
    configurations: tuple[Configuration, ...]
    impossible: tuple[Impossible, ...]
    sources: Sources = field(compare=False, repr=False)
    """Documents from which the campaign was read, for locations in messages."""
    person: SlurmOptions = field(default_factory=SlurmOptions)
    """Slurm options of the user who started the campaign. They are not stored with the campaign."""
    inputs: workload_inputs.Inputs = field(default_factory=dict)
    """Input files of workloads, with the hashes of their content."""
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parser settings with which the logs of workloads were first read, for workloads whose settings have changed since."""
    workload_dirs: Mapping[str, str] = field(default_factory=dict)
    """Directories of the workload files that contain `{workload_dir}`."""
    references: tuple[ReferenceSet, ...] = ()
    """Sets of published claims that the file names."""
    warnings: tuple[str, ...] = ()
    """Warnings about probable mistakes in the files, with file, line and key."""
    part: str = ""
    """Name of the system of this part, or of the only system; '' for a whole campaign with several systems."""

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
        currencies = {system.currency for system in self.systems.values() if system.currency}
        return next(iter(currencies)) if len(currencies) == 1 else None

    @property
    def system_source(self) -> YamlFile:
        """Document of `system`."""
        return self.sources.systems[self.part]

    @property
    def parts(self) -> tuple[Campaign, ...]:
        """Parts of the campaign, one per system that has configurations."""
        return tuple(
            self.part_on(name) for name in dict.fromkeys(configuration.system for configuration in self.configurations)
        )

    def part_on(self, target: str | Configuration) -> Campaign:
        """Return the part of the campaign on a system, with the configurations of that system.

        A part is returned unchanged.

        Args:
            target: name of the system, or a configuration on it.
        """
        name = target if isinstance(target, str) else target.system
        if self.part:
            return self
        return replace(self, part=name, configurations=tuple(c for c in self.configurations if c.system == name))

    def format_location(self, *location: str | int) -> str:
        """Format a location in the campaign's file as 'file:line: key'."""
        return self.sources.campaign.format_location(*location)

    @property
    def protocol(self) -> Protocol:
        return self.file.protocol

    def identify_workload(self, name: str) -> dict[str, Any]:
        """Return the content of a workload's file that is part of the identity of its cells.

        The parser settings of the first reading count, so a changed parser does not change the identity of measured cells.
        """
        workload, first = self.workloads[name], self.readings.get(name)
        return workload.identity_document() if first is None else {**workload.run_identity_document(), **first}

    def with_version(self, version: str | None) -> Campaign:
        """Return a copy of the campaign with another version label.

        `none` removes the label; None returns the campaign unchanged. Raises ConfigError if the label is invalid.
        """
        if version is None:
            return self
        if re.fullmatch(NAME_PATTERN, version) is None or len(version) > 64:
            raise ConfigError(
                f"version: '{version}' is not a valid label; use at most 64 {PATTERN_WORDS[NAME_PATTERN]}"
            )
        try:
            check_label_spelling(version)
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
            excluded = {name for part in re.split(r",(?![^\[]*\])", text) for name in expand_host_names(part.strip())}
        except ValueError as error:
            raise ConfigError(f"--without-hosts: {error}") from error
        names = [name for system in self.systems.values() for group in system.hosts for name in group.list_names()]
        if unknown := sorted(excluded.difference(names)):
            raise ConfigError(f"--without-hosts: there is no host {unknown[0]}; the hosts are: {', '.join(names)}")
        systems: dict[str, SystemFile] = {}
        for name, system in self.systems.items():
            remaining = tuple(host for host in system.list_usable_hosts() if host not in excluded)
            if not remaining:
                raise ConfigError(f"--without-hosts {text}: no host of system {name} would remain; exclude fewer hosts")
            allowed_hosts = (
                remaining if len(remaining) < len(system.list_usable_hosts()) else system.tenancy.allowed_hosts
            )
            tenancy = system.tenancy.model_copy(update={"allowed_hosts": allowed_hosts})
            systems[name] = system.model_copy(update={"tenancy": tenancy})
        return replace(self, systems=systems)

    @property
    def metric(self) -> Metric:
        """Primary metric, which figures, tables and comparisons show."""
        return choose_primary_metric(self.file, self.workloads)

    def find_shape(self, configuration: str) -> int:
        """Return the position in the campaign's file of the shape that results in a configuration."""
        return self._expansion.shapes[configuration][0]

    @cached_property
    def _expansion(self) -> ShapeExpansion:
        return expand_shapes(self.file.configurations, tuple(self.systems.values()), self.sources.campaign)

    def warn_of_repeated_shapes(self) -> Iterator[str]:
        """Yield a warning per shape that only repeats configurations of earlier shapes."""
        return self._expansion.warn_of_repeated_shapes(self.sources.campaign.format_location)

    def find_device_model(self, model: str) -> DeviceModel:
        """Return the entry of a device model in the system file, or the default entry."""
        return self.system.devices.get(model, DeviceModel())

    def device_model(self, configuration: Configuration) -> DeviceModel:
        """Return the entry of a configuration's device model in its system file, or the default entry."""
        return self.part_on(configuration).find_device_model(configuration.device)

    def to_document(self) -> dict[str, Any]:
        """Return the campaign as used as a JSON-serialisable dict, with all defaults filled in."""
        excluded = {"system" if self.file.systems else "systems"}
        excluded |= {
            key for key in ("version", "report") if getattr(self.file, key) == type(self.file).model_fields[key].default
        }
        document: dict[str, Any] = {
            "schema_version": CAMPAIGN_SCHEMA,
            "campaign": self.file.model_dump(mode="json", exclude=excluded),
            **self._dump_systems(),
            "workloads": {name: workload.model_dump(mode="json") for name, workload in sorted(self.workloads.items())},
        }
        optional_parts = {
            "inputs": workload_inputs.dump_inputs(self.inputs),
            "readings": {name: dict(first) for name, first in self.readings.items()},
            "workload_dirs": dict(self.workload_dirs),
            "references": [value.model_dump(mode="json") for value in self.references],
        }
        return {**document, **{name: value for name, value in optional_parts.items() if value}}

    def _dump_systems(self) -> dict[str, Any]:
        documents = {name: system.model_dump(mode="json") for name, system in self.systems.items()}
        return {"systems": documents} if self.file.systems else {"system": documents[self.part]}


def stored_systems(document: Mapping[str, Any]) -> dict[str, Any]:
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
        path: campaign file, or a results directory, whose campaign is read as it was planned there.
        launcher: launcher that replaces the one in the system file (from a Snakemake profile).
        person: Slurm options of the allocations, from the same source.
        run_implied: True to run batches whose out-of-memory failure a smaller batch implies.
        results: directory of all results; its plan and records give the measured content of files that no longer exist.
        version: version label, as in `with_version`.
    """
    if path.is_dir():
        return _load_from_results(path, launcher, person, run_implied).with_version(version)
    campaign = load_campaign_file(path)
    workload_names, format_location = list(dict.fromkeys(campaign.model.axes.workload)), campaign.source.format_location
    calls: list[Callable[[], Any]] = [
        *(
            partial(
                load_named, SystemFile, name, path, format_location("systems" if campaign.model.systems else "system")
            )
            for name in campaign.model.system_names
        ),
        *(partial(load_named, Workload, name, path, format_location("axes", "workload")) for name in workload_names),
        *(
            partial(_read_reference, name, path, format_location("references"))
            for name in dict.fromkeys(campaign.model.references)
        ),
    ]
    loaded_files = collect_results(calls)
    systems, further_files = (
        loaded_files[: len(campaign.model.system_names)],
        loaded_files[len(campaign.model.system_names) :],
    )
    workloads, references = dict(zip(workload_names, further_files, strict=False)), further_files[len(workload_names) :]
    file = _enable_implied_runs(campaign.model) if run_implied else campaign.model
    models = {name: workload.model for name, workload in workloads.items()}
    sources = Sources(
        campaign.source,
        {system.model.name: system.source for system in systems},
        {name: workload.source for name, workload in workloads.items()},
    )
    used_systems = [_set_launcher(launcher, system.model) for system in systems]
    campaign_as_used = resolve_campaign(path, file, used_systems, models, sources)
    # Imported runs were measured elsewhere, so their programs need not exist here.
    measured_workloads = workload_inputs.MeasuredWorkloads(path, results and results / file.name)
    inputs = (
        {}
        if file.imported
        else workload_inputs.read_inputs(path, models, file.axes.options, sources, measured_workloads)
    )
    first = {name: measured_workloads.find_first_reading(model) for name, model in models.items() if model.parsing_keys}
    return replace(
        campaign_as_used.with_version(version),
        person=person or SlurmOptions(),
        references=tuple(references),
        inputs=inputs,
        readings={name: reading for name, reading in first.items() if reading is not None},
        workload_dirs={} if file.imported else workload_inputs.find_workload_directories(models, sources),
        warnings=(
            *warn_of_campaign(file, models, sources.campaign),
            *campaign_as_used.warn_of_repeated_shapes(),
            *warn_of_unknown_scaling(
                campaign_as_used.metric, campaign_as_used.configurations, models, sources.campaign
            ),
            *chain.from_iterable(map(warn_of_system, sources.systems.values())),
            *chain.from_iterable(map(warn_of_workload, models.values(), sources.workloads.values())),
        ),
    )


def _enable_implied_runs(file: CampaignFile) -> CampaignFile:
    return file.model_copy(update={"protocol": file.protocol.model_copy(update={"skip_implied": False})})


def _set_launcher(launcher: str | None, system: SystemFile) -> SystemFile:
    return system if launcher is None else system.model_copy(update={"launcher": launcher})


def _load_from_results(
    directory: Path, launcher: str | None, person: SlurmOptions | None, run_implied: bool
) -> Campaign:
    """Load the campaign of a results directory as it was planned or measured there.

    The campaign gets the current name of the directory.
    """
    if (document := next(read_campaigns_as_used(directory), None)) is None:
        several = sorted(
            path.name for path in directory.glob("*") if path.is_dir() and any(read_campaigns_as_used(path))
        )
        if several:
            problem = (
                f"this directory has the results of {', '.join(several)}; name one, such as {directory / several[0]}"
            )
        else:
            problem = (
                "this directory has no results of a campaign; name a campaign file, the results directory of a campaign, or an "
                "archive"
            )
        raise ConfigError(f"{directory}: {problem}")
    campaign = campaign_from_document(document)
    file = campaign.file.model_copy(update={"name": directory.resolve().name})
    return replace(
        campaign,
        path=directory,
        file=_enable_implied_runs(file) if run_implied else file,
        systems={name: _set_launcher(launcher, system) for name, system in campaign.systems.items()},
        person=person or SlurmOptions(),
    )


def _read_reference(name: str, path: Path, place: str) -> ReferenceSet:
    from campaign.spec.published_file import load_set  # few campaigns name claims, and its models take time to build

    return load_set(name, path.parent, f"{place}: ")


def campaign_from_document(document: Mapping[str, Any]) -> Campaign:
    """Build the campaign that `Campaign.to_document` returns.

    Raises ConfigError if the document is damaged or has another schema version.
    """
    if document.get("schema_version") != CAMPAIGN_SCHEMA:
        raise ConfigError(
            f"the stored campaign has schema {document.get('schema_version')!r}, but this version reads {CAMPAIGN_SCHEMA}"
        )
    try:
        name = Path(document["campaign"]["name"])
        stored_documents = {key: _drop_predictions(system) for key, system in stored_systems(document).items()}
        sources = Sources(
            YamlFile(name, _drop_check(document["campaign"]), {}),
            {key: YamlFile(name, system, {}) for key, system in stored_documents.items()},
            {key: YamlFile(name, workload, {}) for key, workload in document["workloads"].items()},
        )
        if invalid := [
            yaml_file
            for yaml_file in (*sources.systems.values(), *sources.workloads.values())
            if type(yaml_file.data) is not dict
        ]:
            raise TypeError(invalid[0].data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the stored campaign is damaged ({error!r}); restore it from an archive") from error
    file = validate(sources.campaign, CampaignFile)
    systems = [validate(source, SystemFile, key, stored=True) for key, source in sources.systems.items()]
    workloads = {key: validate(source, Workload, key) for key, source in sources.workloads.items()}
    if missing_names := {*file.system_names, *file.axes.workload} - {*sources.systems, *workloads}:
        raise ConfigError(
            f"the stored campaign is damaged (it has no {min(missing_names)}); restore it from an archive"
        )
    campaign = resolve_campaign(name, file, systems, workloads, sources, stored=True)
    inputs = workload_inputs.inputs_from_document(document.get("inputs", {}))
    readings = workload_inputs.read_first_readings(document, workloads)
    campaign = replace(campaign, inputs=inputs, readings=readings, workload_dirs=document.get("workload_dirs") or {})
    if not document.get("references"):
        return campaign
    from campaign.spec.published_file import from_document as reference_set

    references = (reference_set(yaml_file, f"{name}: references") for yaml_file in document["references"])
    return replace(campaign, references=tuple(references))


def system_from_document(system: Any) -> SystemFile:
    """Build a system from a stored campaign. Raises ValidationError if the document is not a system."""
    return SystemFile.model_validate(_drop_predictions(system))


def _drop_check(campaign: Any) -> Any:
    """Return a stored campaign without `protocol: check`, by which earlier versions checked devices."""
    if type(campaign) is not dict or "protocol" not in campaign:
        return campaign
    return {**campaign, "protocol": _drop_key(campaign["protocol"], "check")}


def _drop_predictions(system: Any) -> Any:
    """Return a stored system without the keys that earlier versions had for predictions."""
    if type(system) is not dict:
        return system
    document = {name: value for name, value in system.items() if name != "parameters"}
    if "emulation" in document:
        document["emulation"] = _drop_key(document["emulation"], "dilation")
    for name, key in (("devices", "memory_gib"), ("links", "uses")):
        if type(entries := document.get(name)) is dict:
            document[name] = {entry: _drop_key(values, key) for entry, values in entries.items()}
    return document


def _drop_key(document: Any, key: str) -> Any:
    """Return a dict without the given key. A value that is not a dict is returned unchanged."""
    return {name: value for name, value in document.items() if name != key} if type(document) is dict else document


def resolve_campaign(
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
        sources: documents from which they were read, for locations in messages.
        stored: see `check_campaign`.
    """
    expansion = expand_shapes(file.configurations, systems, sources.campaign)
    configurations = expansion.configurations
    check_campaign(file, systems, workloads, configurations, sources, stored=stored)
    if file.axes.configuration:
        configurations = tuple(c for c in configurations if c.name in file.axes.configuration)
    by_name = {system.name: system for system in systems}
    part = systems[0].name if len(systems) == 1 else ""
    return Campaign(path, file, by_name, workloads, configurations, expansion.impossible, sources, part=part)
