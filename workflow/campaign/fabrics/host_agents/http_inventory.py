"""Host agent that reads the devices of a host from an HTTP service of the site.

It takes no device out of use and scans for nothing. GET `url` returns a JSON list with one object per device: `identity` (GPU
UUID, serial number, MAC), and if known `address`, `kind`, `model`, `link` (`width`, `gen`, `width_max`, `gen_max`), `ready`, and
`users` (descriptions of the users of the device). Other members are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, Field, StrictBool, ValidationError

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics.host_agents import AgentOptions
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.http.options import ConnectionOptions
from campaign.fabrics.http.response import Answer
from campaign.spec.hardware import Link, normalize_identity


def open_agent(options: AgentOptions) -> HttpInventoryAgent:
    """Open the agent of an HTTP inventory service.

    Raises ConfigError if the address has no `{host}`, or if `ca_file` is not a certificate file.
    """
    if options.url is None:
        raise ConfigError("agent: kind http needs a url such as https://inventory.example/{host}/devices")
    if not (options.url.startswith(("http://", "https://")) and "{host}" in options.url):
        raise ConfigError(f"agent: url: {options.url!r} must be an http(s) address that contains {{host}}")
    if "@" in urlsplit(options.url).netloc:
        raise ConfigError("agent: url: the address must not contain a user or password; use a service without a login")
    if options.ca_file is not None:
        try:
            ConnectionOptions(url="https://host", ca_file=options.ca_file).create_tls_context()
        except ConfigError as error:
            raise ConfigError(f"agent: {error}") from error
    return HttpInventoryAgent(options)


_NonNegative = Annotated[int, Field(strict=True, ge=0)]


class _ListedLink(BaseModel):
    """PCIe link of a device in an answer of the inventory service."""

    width: _NonNegative
    gen: _NonNegative
    width_max: _NonNegative
    gen_max: _NonNegative


class _ListedDevice(BaseModel):
    """Device in an answer of the inventory service."""

    identity: str
    address: str = ""
    kind: str = "gpu"
    model: str = ""
    link: _ListedLink | None = None
    ready: StrictBool = True
    users: list[Any] | None = None

    def to_host_device(self) -> HostDevice:
        """Convert the entry to a host device."""
        link = Link(**self.link.model_dump()) if self.link else None
        return HostDevice(self.identity, self.address, self.kind, self.model, link, self.ready)


class HttpInventoryAgent:
    """Host agent of an HTTP inventory service; see `protocol.HostAgent`."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._clients: dict[str, HttpClient] = {}
        self._users: dict[str, dict[str, tuple[str, ...]]] = {}

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        """Return the devices that the service lists for a host. Raises FabricError if the answer is invalid."""
        url, answer = self._fetch_inventory(host)
        if not isinstance(answer.body, list):
            raise FabricError(f"{url}: the answer is not a JSON list of devices: {answer.summarize()}")
        try:
            entries = [_ListedDevice.model_validate(entry) for entry in answer.body]
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"]))
            raise FabricError(f"{url}: an entry is not a valid device: {key}: {problem['msg']}") from error
        self._users[host] = {
            normalize_identity(inventory_entry.identity): tuple(map(str, inventory_entry.users or ()))
            for inventory_entry in entries
        }
        return tuple(inventory_entry.to_host_device() for inventory_entry in entries)

    def rescan(self, host: str) -> None:
        """Do nothing, because the service cannot make a host scan."""

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Raise HostBusy if a device had users in the last listing, which the caller has just made."""
        if force or not devices:
            return
        if host not in self._users:
            self.list_devices(host)
        users_by_identity = {
            device.identity: users
            for device in devices
            if (users := self._users[host].get(normalize_identity(device.identity)))
        }
        if users_by_identity:
            description = "; ".join(
                f"{identity} by {', '.join(users)}" for identity, users in users_by_identity.items()
            )
            holders = [user for users in users_by_identity.values() for user in users]
            raise HostBusy(
                f"{host}: devices are in use: {description}; end their users on the host, then repeat the release",
                holders,
            )

    def close(self) -> None:
        """Close the connections to the service."""
        for client in self._clients.values():
            client.close()

    def _fetch_inventory(self, host: str) -> tuple[str, Answer]:
        """Fetch a host's inventory within `look_s`, and return the URL and the answer. Raises FabricError on failure."""
        url = str(self._options.url).replace("{host}", quote(host, safe=""))
        split = urlsplit(url)
        origin, look_s = f"{split.scheme}://{split.netloc}", self._options.look_s
        if origin not in self._clients:
            self._clients[origin] = HttpClient(
                ConnectionOptions(url=origin, ca_file=self._options.ca_file, request_s=look_s, operation_s=look_s)
            )
        answer = self._clients[origin].get(url.removeprefix(origin))
        if not answer.is_success:
            raise FabricError(f"GET {url}: the service refuses the request: {answer.summarize()}")
        return url, answer
