"""Looking on hosts by asking a service of the site over HTTP: it looks, and gets nothing out of use.

GET `url` gives a JSON list, one object a device: `identity` (GPU UUID, serial, MAC), and where known `address`, `kind`, `model`,
`link` (`width`, `gen`, `width_max`, `gen_max`), `ready`, and `users`: words for whoever uses it. Other members are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.hardware import Link
from campaign.fabrics.host_agents.options import AgentOptions
from campaign.fabrics.host_agents.pairing import normal
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.options import Connection
from campaign.fabrics.http.response import Answer


def open_agent(options: AgentOptions) -> HttpInventory:
    """Raises ConfigError for an address without `{host}`, and for a `ca_file` that is none."""
    if options.url is None:
        raise ConfigError(
            "agent: url is missing; kind http needs an address such as https://inventory.example/{host}/devices"
        )
    for name, url in (("url", options.url), ("rescan_url", options.rescan_url)):
        if url is not None and not (url.startswith(("http://", "https://")) and "{host}" in url):
            raise ConfigError(f"agent: {name}: {url!r} must be an http(s) address with {{host}} in it")
        if url is not None and "@" in urlsplit(url).netloc:
            raise ConfigError(
                f"agent: {name}: an address cannot have a user or password in it; use one without a login"
            )
    if options.ca_file is not None:
        try:
            Connection(url="https://host", ca_file=options.ca_file).tls()
        except ConfigError as error:
            raise ConfigError(f"agent: {error}") from error
    return HttpInventory(options)


class HttpInventory:
    """See `protocol.HostAgent`."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._clients: dict[str, Client] = {}
        self._users: dict[str, dict[str, tuple[str, ...]]] = {}

    def devices(self, host: str) -> tuple[HostDevice, ...]:
        url = _address(str(self._options.url), host)
        answer = self._send("GET", url)
        if not isinstance(answer.body, list):
            raise FabricError(f"{url}: a JSON list of devices was expected, got: {answer.words()}")
        try:
            found = tuple(map(device, answer.body))
            self._users[host] = {
                normal(one.identity): _users(entry) for one, entry in zip(found, answer.body, strict=True)
            }
        except (KeyError, TypeError, ValueError) as error:
            raise FabricError(f"{url}: an entry describes no device: {type(error).__name__}: {error}") from error
        return found

    def rescan(self, host: str) -> None:
        if self._options.rescan_url is not None:
            self._send("POST", _address(self._options.rescan_url, host))

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Only tells of users, as of the last look, which whoever detaches has just had."""
        if force or not devices:
            return
        if host not in self._users:
            self.devices(host)
        used = {one.identity: users for one in devices if (users := self._users[host].get(normal(one.identity)))}
        if used:
            what = "; ".join(f"{identity} by {', '.join(users)}" for identity, users in used.items())
            holders = [user for users in used.values() for user in users]
            raise HostBusy(f"{host}: in use: {what}; end them on the host, then release again", holders)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _send(self, method: str, url: str) -> Answer:
        """The answer of a success, within `look_s`. Raises FabricError for any other."""
        split = urlsplit(url)
        origin, look_s = f"{split.scheme}://{split.netloc}", self._options.look_s
        if origin not in self._clients:
            self._clients[origin] = Client(
                Connection(url=origin, ca_file=self._options.ca_file, request_s=look_s, operation_s=look_s)
            )
        client, path = self._clients[origin], url.removeprefix(origin)
        answer = client.get(path) if method == "GET" else client.change(method, path)
        if not answer.ok:
            raise FabricError(f"{method} {url}: refused: {answer.words()}")
        return answer


def device(entry: Mapping[str, Any]) -> HostDevice:
    """One object of the list. Raises KeyError, TypeError or ValueError when it describes no device."""
    if not isinstance(entry, Mapping):
        raise TypeError(f"no object: {entry!r}")
    texts = {name: entry.get(name, default) for name, default in (("address", ""), ("kind", "gpu"), ("model", ""))}
    texts["identity"] = entry["identity"]
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} is no text: {text!r}")
    ready = entry.get("ready", True)
    if not isinstance(ready, bool):
        raise TypeError(f"ready is neither true nor false: {ready!r}")
    link = entry.get("link")
    if link is not None:
        link = Link(*(_count(link, name) for name in ("width", "gen", "width_max", "gen_max")))
    return HostDevice(texts["identity"], texts["address"], texts["kind"], texts["model"], link, ready)


def _count(link: Mapping[str, Any], name: str) -> int:
    value = link[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"link.{name} is no count: {value!r}")
    return value


def _users(entry: Mapping[str, Any]) -> tuple[str, ...]:
    users = entry.get("users") or []
    if not isinstance(users, list):
        raise TypeError(f"users is no list: {users!r}")
    return tuple(map(str, users))


def _address(url: str, host: str) -> str:
    return url.replace("{host}", quote(host, safe=""))
