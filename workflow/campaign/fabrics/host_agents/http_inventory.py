"""Looking on hosts by asking a service of the site over HTTP: it looks, and gets nothing out of use.

GET `url` gives a JSON list, one object a device: `identity` (GPU UUID, serial, MAC), and where known `address`, `kind`, `model`,
`link` (`width`, `gen`, `width_max`, `gen_max`), `ready`, and `users`: words for whoever uses it. Other members are left alone.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.control_plane.options import AgentOptions
from campaign.fabrics.host_agents.pairing import normal
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.protocol import Link

_BODY_MAX = 8 * 1024 * 1024


def open_agent(options: AgentOptions) -> HttpInventory:
    """Raises ConfigError for an address without `{host}`, and for a `ca_file` that is none."""
    if options.url is None:
        raise ConfigError(
            "agent: url is missing; kind http needs an address such as https://inventory.example/{host}/devices"
        )
    for name, url in (("url", options.url), ("rescan_url", options.rescan_url)):
        if url is not None and not (url.startswith(("http://", "https://")) and "{host}" in url):
            raise ConfigError(f"agent: {name}: {url!r} is no http(s) address with {{host}} in it")
    try:
        ca_file = None if options.ca_file is None else str(Path(options.ca_file).expanduser())
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"agent: ca_file: {options.ca_file}: no certificates can be read from it "
            f"({getattr(error, 'strerror', None) or error}); give a file in PEM form"
        ) from error
    client = httpx.Client(verify=context, trust_env=False, follow_redirects=False)
    return HttpInventory(client, options.url, options.rescan_url, options.look_s)


class HttpInventory:
    """See `protocol.HostAgent`."""

    def __init__(self, client: httpx.Client, url: str, rescan_url: str | None, look_s: float) -> None:
        self._client, self._url, self._rescan_url, self._look_s = client, url, rescan_url, look_s
        self._users: dict[str, dict[str, tuple[str, ...]]] = {}

    def devices(self, host: str) -> tuple[HostDevice, ...]:
        url = _address(self._url, host)
        text = self._send("GET", url)
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FabricError(f"{url}: a JSON list of devices was expected, got: {_words(text)}") from error
        if not isinstance(body, list):
            raise FabricError(f"{url}: a JSON list of devices was expected, got: {_words(text)}")
        try:
            found = tuple(map(device, body))
            self._users[host] = {normal(one.identity): _users(entry) for one, entry in zip(found, body, strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            raise FabricError(f"{url}: an entry describes no device: {type(error).__name__}: {error}") from error
        return found

    def rescan(self, host: str) -> None:
        if self._rescan_url is not None:
            self._send("POST", _address(self._rescan_url, host))

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
        self._client.close()

    def _send(self, method: str, url: str) -> str:
        """The body of the answer, as text."""
        until = time.monotonic() + self._look_s
        content = b""
        try:
            with self._client.stream(method, url, timeout=self._look_s) as reply:
                for part in reply.iter_bytes():
                    content += part
                    if len(content) > _BODY_MAX or time.monotonic() > until:
                        raise FabricError(
                            f"{method} {url}: no whole answer within {self._look_s:g} s (look_s) and {_BODY_MAX} bytes"
                        )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FabricError(f"{method} {url}: no answer ({type(error).__name__}: {error})") from error
        text = content.decode(errors="replace")
        if not reply.is_success:
            raise FabricError(f"{method} {url}: refused: HTTP {reply.status_code} {_words(text)}")
        return text


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


def _words(text: str) -> str:
    return " ".join(text.split())[:200] or "(empty)"
