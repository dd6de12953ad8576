"""Where a control plane is, and what is asked for there: every address that it gives stays within it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from campaign.fabrics.errors import ProtocolViolation

_SAFE = "/%:@!$&'()*+,;=~-._"


class Address:
    """The url of a system file. `target`: what stands in a request line, path and query."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url.rstrip("/"))
        self.text = url.rstrip("/")
        self.secure = split.scheme.lower() == "https"
        self.host = (split.hostname or "").encode("idna").decode()
        self.port = split.port or (443 if self.secure else 80)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.host_header = shown if split.port is None else f"{shown}:{split.port}"
        self._prefix = split.path
        self._origin = _origin(url)

    def url(self, target: str) -> str:
        return self.text.removesuffix(self._prefix) + target

    def target(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """path: below the url; of an address with a host only the path counts, as services behind a tunnel give names of their own.

        Raises ProtocolViolation for what is no text.
        """
        if not isinstance(path, str):
            raise ProtocolViolation(f"{self.text}: an address was expected, got: {str(path)[:100]}")
        path, _, query = re.sub(r"^(?i:https?)://[^/?#]*", "", path).partition("#")[0].partition("?")
        path = "/" + path.lstrip("/")
        if self._prefix and not f"{path}/".startswith(self._prefix + "/"):
            path = self._prefix + (path if path != "/" else "")
        if params:
            plain = {name: _plain(value) for name, value in params.items()}
            added = urlencode(plain, doseq=True, safe="$,:@/*()!;'=", quote_via=quote)
            query = f"{query}&{added}" if query else added
        return _quoted(path, query)

    def onward(self, target: str, location: str) -> str | None:
        """The target that a redirection of `target` names; None for one to another host, or to nowhere."""
        try:
            joined = urljoin(self.url(target), location)
            if _origin(joined) != self._origin:
                return None
        except ValueError:
            return None
        split = urlsplit(joined)
        return _quoted(split.path or "/", split.query)


def _origin(url: str) -> tuple[str, str, int]:
    split = urlsplit(url)
    scheme = split.scheme.lower()
    return scheme, split.hostname or "", split.port or (443 if scheme == "https" else 80)


def _quoted(path: str, query: str) -> str:
    target = quote(path, safe=_SAFE, errors="replace")
    return f"{target}?{quote(query, safe=_SAFE + '?', errors='replace')}" if query else target


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
