"""Recordings of requests and answers of a control plane, as documents without names of the site, which can be shared.

A word is kept only if it is known: it occurs in the source code of the adapters, or the user asked to keep it. Every other word
in addresses, headers, bodies and errors is replaced, always by the same stand-in. Stand-ins of numbers, hexadecimal ids and
UUIDs keep their shape, so that adapters interpret the document as they interpreted the control plane.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from campaign.common.credentials import MASK, names_secret
from campaign.fabrics.http.redaction import AUTHENTICATING
from campaign.fabrics.http.response import parsed
from campaign.fabrics.protocol import RecordedRequest

SCHEMA = "recording/1"
INT_MAX = 10**8
"""Integers from this size on are replaced, because they are serial numbers and not counts."""
TEXT_MAX = 64 * 1024
"""Maximum length of an answer that is not JSON; the rest is left out."""
_PASSING = ("date", "connection", "content-length", "transfer-encoding", "keep-alive")
"""Headers that describe only a single transfer."""
_TOKEN = re.compile(r"""[^\s/\\"'{}\[\](),;=&?<>|#$*%!`]+""")
_ORIGIN = re.compile(r"https?://[^\s/?#\"'<>\\]+", re.IGNORECASE)
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBER = re.compile(r"[-+]?(0x)?0*(?=[0-9A-Fa-f]*\d)[0-9A-Fa-f]{1,4}h?|\d{1,3}(\.\d{1,3}){1,2}|[.:+_-]+")
"""Pattern of numbers with at most four digits, of versions, and of signs."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.+-]+Z?)?")
_VERSION = re.compile(r"\.v\d+(_\d+)+")
_UUID = re.compile(r"((?:[A-Za-z]+-)?)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"((?:0x)?)(?=[0-9A-Fa-f]*\d)([0-9A-Fa-f]{5,})")
_KEY = re.compile(r"([A-Za-z]*@(odata|Redfish|Message)\.)?[A-Za-z_() -]*#?|#[A-Za-z_.]*")


@cache
def vocabulary(*sources: Path) -> frozenset[str]:
    """Collect the words in the source code of this package's fabrics and of further files, in lower case.

    Words in camel case also count as their parts.
    """
    found: set[str] = set()
    for path in (*Path(__file__).parents[1].rglob("*.py"), *sources):
        for token in _TOKEN.findall(path.read_text(encoding="utf-8")):
            word = token.strip(".:")
            found.add(word.lower())
            found.update(part.lower() for part in _CAMEL.findall(word) if len(part) > 1)
    return frozenset(found)


class StandIns:
    """Consistent replacement of the names of a site in recorded requests.

    stand_ins: stand-in by replaced word. addresses: name by host and port.
    """

    def __init__(
        self, scrub: Callable[[str], str], keep: Iterable[str], named: Iterable[str] = (), sources: Iterable[Path] = ()
    ) -> None:
        """Prepare the words to keep and to replace.

        Args:
            redact_secrets: function that masks secrets in a text.
            texts_to_keep: texts of which every word is kept, such as models of devices.
            names_to_replace: words that are replaced even if they are known, such as names of hosts.
            sources: further files whose words are known (see `collect_vocabulary`).
        """
        self._scrub = scrub
        self._kept = {word.lower() for text in keep for word in _TOKEN.findall(text)}
        named = {name.lower() for name in named}
        self._known = (vocabulary(*sources) | self._kept) - named
        self._named = re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, named)) or '(?!)'})(?![a-z0-9])")
        self.replaced: dict[str, str] = {}
        self.addresses: dict[str, str] = {}

    def origin(self, url: str) -> str:
        """Replace the scheme, host and port of a URL by `http://addressN`."""
        netloc = urlsplit(url).netloc.rpartition("@")[2].lower()
        return "http://" + self.addresses.setdefault(netloc, f"address{len(self.addresses) + 1}")

    def text(self, text: str) -> str:
        """Replace secrets, addresses and unknown words in a text."""
        shown = _ORIGIN.sub(lambda found: self.origin(found[0]), self._scrub(text))
        return _TOKEN.sub(lambda found: self._word(found[0]), shown)

    def value(self, value: Any) -> Any:
        """Replace secrets, names and large integers in a JSON value."""
        if isinstance(value, Mapping):
            return {self._key(name): self._member(name, one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= INT_MAX:
            return int(self._replaced(str(value)))
        return self.text(value) if isinstance(value, str) else value

    def _member(self, name: str, value: Any) -> Any:
        """Replace the value of a member, header or field.

        The value is masked if its name marks it as a secret, even if the value is a known word.
        """
        told = isinstance(value, str | int) and not isinstance(value, bool)
        return MASK if told and names_secret(name) else self.value(value)

    def _key(self, name: str) -> str:
        """Replace the name of a member if necessary.

        Names are kept unless they contain a number or a dot, or occur as a replaced name elsewhere.
        """
        foreign = name in self.replaced or self._named.search(name.lower()) or name != self._scrub(name)
        return self.text(name) if foreign or not _KEY.fullmatch(name) else name

    def _word(self, word: str) -> str:
        """Replace a word unless it is known. Dots and colons around it are kept."""
        bare = word.strip(".:")
        if bare.lower() in self.addresses:
            return self.addresses[bare.lower()]
        if self._is_known(bare):
            return word
        return word.replace(bare, self._replaced(bare))

    def _is_known(self, word: str) -> bool:
        """Return True if a word is kept, such as a word of the adapters, a short number, a version or a time."""
        if word.lower() in self._known or word in self.addresses.values():
            return True
        if self._named.search(word.lower()):
            return False
        if _NUMBER.fullmatch(word) or _TIME.fullmatch(word) or word.lower() in self._kept:
            return True
        letters = _VERSION.sub("", word)
        parts = _CAMEL.findall(letters)
        whole = re.fullmatch("[A-Za-z_.@:-]+", letters) is not None
        return whole and all(part.lower() in self._known for part in parts)

    def _replaced(self, word: str) -> str:
        """Return the stand-in of a word, which is created at its first occurrence."""
        return self.replaced.setdefault(word, _stand_in(word, len(self.replaced) + 1))

    def exchange(self, one: RecordedRequest) -> dict[str, Any]:
        """Convert a recorded request and its answer into an entry of the document, without names of the site."""
        split = urlsplit(one.target)
        asked: dict[str, Any] = {"at": self.origin(one.at), "ask": f"{one.method} {self.text(unquote(split.path))}"}
        if query := parse_qsl(split.query, keep_blank_values=True):
            asked["query"] = {self._key(name): self._member(name, value) for name, value in query}
        if one.sent:
            asked |= self._body("sent", *parsed(one.sent))
        asked["seconds"] = round(one.seconds, 3)
        if one.status is None:
            return asked | {"lost": self.text(one.error)}
        secret = dict.fromkeys(AUTHENTICATING & one.headers.keys(), MASK)
        told = {
            self._key(name): self._member(name, value)
            for name, value in {**one.headers, **secret}.items()
            if name not in _PASSING
        }
        headers = {"headers": told} if told else {}
        return asked | {"status": one.status, **headers} | self._body("answer", one.body, one.text)

    def _body(self, name: str, body: Any, text: str) -> dict[str, Any]:
        """Return a body as an entry of the document, as JSON if possible, otherwise as text of limited length."""
        if body is not None:
            return {name: self.value(body)}
        return {f"{name}_text": self.text(text[:TEXT_MAX])} if text else {}


def _stand_in(word: str, number: int) -> str:
    """Create a stand-in of the same shape as a word, different from every word that is kept."""
    if found := _UUID.fullmatch(word):
        return f"{found[1]}00000000-0000-4000-8000-{number:012x}"
    if found := _HEX.fullmatch(word):
        length = len(found[2]) - 1
        return found[1] + (f"9{number:0{length}d}" if found[2].isdecimal() else f"e{number:0{length}x}")
    return f"name{number}"


def document(
    kind: str,
    options: Mapping[str, Any],
    system: Mapping[str, Any],
    exchanges: Iterable[RecordedRequest],
    names: StandIns,
) -> dict[str, Any]:
    """Build the JSON document of a recording, without names of the site.

    Args:
        kind: kind of the fabric.
        options: options of the fabric in the system file; those about the login are left out.
        system: further keys of the system file.
        exchanges: recorded requests with their answers.
        anonymizer: replacement of names.
    """
    told = {name: value for name, value in options.items() if name not in _OWN and not name.endswith("_env")}
    exchanges = list(exchanges)
    for one in exchanges:
        names.origin(one.at)
    fabric = {name: _named(value, names) for name, value in told.items()}
    described = {name: _named(value, names) for name, value in system.items()}
    found = {"schema_version": SCHEMA, "fabric": {"kind": kind, **fabric}, **described}
    found["login"] = bool(options.get("credentials"))
    for one in exchanges:
        names.exchange(one)  # first pass: a key may turn out to be a name only in a later answer
    found["exchanges"] = [names.exchange(one) for one in exchanges]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


_OWN = ("kind", "credentials", "ca_file", "verify_tls", "tunnel", "agent")


def _named(value: Any, names: StandIns) -> Any:
    """Replace names in a value of a system file, including its keys."""
    if isinstance(value, Mapping):
        return {names.text(str(key)): _named(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_named(one, names) for one in value]
    return names.value(value)
