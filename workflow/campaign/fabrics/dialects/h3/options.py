"""Options of H3 Falcon boxes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from campaign.errors import ConfigError
from campaign.fabrics.control_plane.options import Controlled
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.http.options import Connection

_UUID = re.compile(r"GPU-[0-9A-Fa-f-]+")


class Options(Controlled):
    """Falcon boxes as one fabric; each box is a drawer of the pool. `hosts`: number of a host's port (`Port#`), the same in every
    box unless `ports` says otherwise. `models`: model of a device by its UUID, where a box has several."""

    url: Literal[""] = Field(default="", description="not used: each box has an address, see `boxes`")
    boxes: dict[str, str] = Field(
        min_length=1,
        description="address of each box, by the drawer that it is in the pool (`falcon1/drawer1: http://10.0.0.1`)",
    )
    api: Literal["gpu", "cxl"] = Field(
        default="gpu", description="`gpu`: boxes of GPUs (Falcon 4005); `cxl`: boxes of memory (Falcon C5022)"
    )
    ports: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="port of each host that is cabled to a box (`falcon1/drawer2: {host1: '16'}`), by box; default: as in `hosts`",
    )
    movable: tuple[str, ...] = Field(
        default=(),
        description="what the campaign may take from the host that it is found on: all devices of a box, those on a host, or one "
        "device (`[falcon1/drawer1, host2, GPU-...]`). Nothing else that is found attached is ever moved",
    )
    modes: dict[str, Literal["standard_one_host", "advanced"]] = Field(
        default_factory=dict,
        description="mode that a box is set to, which it does not tell: `advanced`: three hosts at one time, `standard_one_host`: "
        "one; default: no limit. It is never changed",
    )
    offline: bool = Field(
        default=False,
        description="with `api: cxl`: hosts have taken a module offline when its lease ends; nobody looks, and nothing is composed "
        "without this",
    )
    poll_s: Annotated[float, Field(ge=0)] = Field(
        default=0.5, description="seconds between two reads of a box; a state counts when two reads in a row agree"
    )
    reads_max: Annotated[int, Field(ge=2)] = Field(
        default=10, description="reads after which a box whose lists never agree is given up"
    )
    request_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="seconds that one request may take; a box answers it when it has done everything before it",
    )
    operation_s: Annotated[float, Field(gt=0)] = Field(
        default=1800.0, description="seconds that composing or releasing may take, about 40 for each device that moves"
    )

    @field_validator("boxes")
    @classmethod
    def _addresses(cls, boxes: dict[str, str]) -> dict[str, str]:
        for name, url in boxes.items():
            try:
                Connection(url=url)
            except ValidationError as error:
                raise ValueError(f"{name}: {url!r} is no address such as http://10.0.0.1") from error
        return boxes

    def connection(self, box: str) -> Connection:
        """How one box is reached."""
        shared = {name: getattr(self, name) for name in Connection.model_fields if name != "url"}
        return Connection(url=self.boxes[box], **shared)

    def model(self, told: str) -> str:
        return self.models.get(told, told)

    def port(self, box: str, host: str) -> str | None:
        """The port of a host in a box; None where it is not cabled to it."""
        return self.ports.get(box, self.hosts).get(host)

    def fit(self, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec]) -> None:
        """Raises ConfigError for names that are no box or host of the system, and for two hosts on one port."""
        names = [host.name for host in hosts]
        movable = [each for each in self.movable if not _UUID.fullmatch(each)]
        told: list[tuple[str, Iterable[str], Collection[str], str]] = [
            ("modes", self.modes, self.boxes, "box"),
            ("ports", self.ports, self.boxes, "box"),
            ("hosts", self.hosts, names, "host"),
            *((f"ports: {box}", given, names, "host") for box, given in self.ports.items()),
            ("pool: drawer", [spec.drawer for spec in pool if spec.drawer is not None], self.boxes, "box"),
            ("movable", movable, [*self.boxes, *names], "box or host"),
        ]
        for key, given, known, what in told:
            if unknown := [each for each in given if each not in known]:
                raise ConfigError(f"{key}: no {what} {unknown[0]!r}; there are: {', '.join(known)}")
        for box in self.boxes:
            taken: dict[str, str] = {}
            for name in names:
                port = self.port(box, name)
                if port is not None and taken.setdefault(port, name) != name:
                    raise ConfigError(
                        f"hosts: {name} and {taken[port]} both have port {port} of {box}; a port has one host"
                    )
