"""Launch rules of a system file (`fabric: launch`), and the remote and partial devices that follow from them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from campaign.errors import ConfigError
from campaign.fabrics.hardware import Device
from campaign.fabrics.launch_prefix import Launch, exact, names_in
from campaign.fabrics.placement.devices import POOL


def _part(value: str | float) -> str | float:
    exact(value)
    return value


class LaunchRule(BaseModel):
    """What a process needs to use devices of one model. Prefix and environment are templates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(description="model of the devices, as under `hosts` and in `pool`")
    where: Literal["local", "pool"] | None = Field(
        default=None, description="for the hosts' own devices only, or for those of the pool; default: for both"
    )
    prefix: tuple[Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")], ...] = Field(
        default=(),
        description="words before the command of every rank (or of the program, where it is started once), such as "
        '`[bitfusion, run, -n, "{devices}", -p, "{fraction}", --]`. In braces: `{devices}` that the process uses, `{fraction}`, '
        "`{percent}`, `{memory_mib}`, `{ids}`, `{servers}`, `{host}`",
    )
    environment: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
    ] = Field(
        default={},
        description='variables of every rank, with the same names in braces, such as `CUDA_VISIBLE_DEVICES: "{ids}"`; they win '
        "over the workload's",
    )
    fraction: Annotated[str | float, AfterValidator(_part)] = Field(
        default="1", description="part of a device that one of these is, taken as written: `1/7`, `5/20`, `0.25`"
    )
    shares: int | None = Field(
        default=None,
        ge=1,
        description="how many of them each device that `count` counts gives; default: as many as fit. More than that take turns on "
        "it; fewer spread the parts of a run over devices",
    )
    memory_mib: int | None = Field(default=None, ge=1, description="memory of each in MiB, for `{memory_mib}`")
    of: str | None = Field(
        default=None,
        description="model that these devices are, too, by another way or in part: its devices at the same place, in order; only "
        "one of the two is used at one time",
    )
    ids: dict[str, tuple[str, ...]] = Field(
        default={},
        description="by host, or drawer of the pool (`pool` without one): what a process knows each device by, such as "
        "`MIG-<uuid>`: one for each part, or one for each device. Default: its number there, from 0; give UUIDs where Slurm "
        "numbers the devices of a job anew. Operations, not identity",
    )

    @property
    def part(self) -> Fraction:
        return exact(self.fraction)

    @property
    def parts(self) -> int:
        """How many one device gives."""
        return self.shares or int(1 / self.part)

    def covers(self, *, local: bool) -> bool:
        return self.where in (None, "local" if local else "pool")

    @field_validator("prefix", "environment")
    @classmethod
    def _templates(cls, value: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
        for text in value.values() if isinstance(value, dict) else value:
            list(names_in(text))
        return value

    @model_validator(mode="after")
    def _does_something(self) -> LaunchRule:
        texts = (*self.prefix, *self.environment.values())
        if not texts:
            raise ValueError(
                f"{self.device}: give a prefix or an environment: without one, a run cannot reach the device"
            )
        if self.memory_mib is None and any("memory_mib" in names_in(text) for text in texts):
            raise ValueError(f"{self.device}: '{{memory_mib}}' is asked for; give memory_mib")
        return self


class Options(BaseModel):
    """What runs need to use devices that nothing attaches. Devices of hosts that no entry names are used as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    launch: tuple[LaunchRule, ...] = Field(min_length=1, description="one entry for each model of such devices")

    def rule(self, model: str, *, local: bool) -> LaunchRule | None:
        return next((rule for rule in self.launch if rule.device == model and rule.covers(local=local)), None)

    @model_validator(mode="after")
    def _once(self) -> Options:
        for local, where in ((True, "hosts' own devices"), (False, "devices of the pool")):
            counts = Counter(rule.device for rule in self.launch if rule.covers(local=local))
            if twice := [model for model, count in counts.items() if count > 1]:
                raise ValueError(f"{twice[0]}: two entries for {where} of this model; remove one, or say `where`")
        return self


def devices_at(place: str, counts: Mapping[tuple[str, str], int], options: Options, *, local: bool) -> list[Device]:
    """All devices of a host or a drawer: first those that are, then those that are others by another way, or parts of them."""
    found: list[Device] = []
    numbers: Counter[str] = Counter()
    physical: dict[str, list[int]] = {}
    for own in (True, False):
        for (kind, model), count in counts.items():
            rule = options.rule(model, local=local)
            if rule is None and not local:
                raise ConfigError(
                    f"pool: {place}: nothing attaches '{model}'; give it an entry in `launch`, or remove it"
                )
            if (rule is None or rule.of is None) != own:
                continue
            if own:
                physical[model] = list(range(numbers[kind], numbers[kind] + count))
                numbers[kind] += count
            elif rule is not None and count > len(physical.get(rule.of or "", ())):
                have = len(physical.get(rule.of or "", ()))
                raise ConfigError(
                    f"launch: {model}: {place} has {count} of them, and {have} '{rule.of}' that they are of"
                )
            used = physical[(rule and rule.of) or model][:count]
            found += _expanded(place, kind, model, used, rule, local=local)
    return found


def _expanded(
    place: str, kind: str, model: str, numbers: Sequence[int], rule: LaunchRule | None, *, local: bool
) -> list[Device]:
    """Devices of one model, or their parts. numbers: of the physical ones, which are counted through by kind."""

    def device(name: str, number: int, launch: Launch | None) -> Device:
        location = place if local else f"{place}/slot{number + 1}"
        to = place if local else None
        return Device(name, kind, model, None, location, local, attached_to=to, launch=launch)

    if rule is None:
        return [device(f"{place}/{kind}{number}", number, None) for number in numbers]
    ids = rule.ids.get(place, tuple(map(str, numbers)))
    if len(ids) not in (len(numbers), len(numbers) * rule.parts):
        each = "" if rule.parts == 1 else f", or {len(numbers) * rule.parts} for their parts"
        raise ConfigError(f"launch: {model}: ids: {place}: {len(ids)} are given for {len(numbers)} devices{each}")
    # A host's own device and the same one lent to others are different things to hold.
    where = place if local or place == POOL else f"{POOL}/{place}"
    found = []
    for index, number in enumerate(numbers):
        for part in range(rule.parts):
            name = f"{where}/{kind}{number}/{model}" + (f".{part}" if rule.parts > 1 else "")
            each_id = ids[index if len(ids) == len(numbers) else index * rule.parts + part]
            launch = Launch(
                rule.prefix,
                rule.environment,
                str(rule.part),
                rule.memory_mib,
                f"{place}/{kind}{number}",
                each_id,
                place,
            )
            found.append(device(name, number, launch))
    return found
