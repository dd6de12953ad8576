"""Recordings of requests and answers of a control plane, as documents without names of the site, which can be shared.

A word is kept only if it is known: it occurs in the source code of the adapters, or the user chose to keep it. Every other word
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

from campaign.common.credentials import MASK, is_secret_name
from campaign.fabrics.http.redaction import AUTHENTICATION_HEADERS
from campaign.fabrics.http.response import parse_json
from campaign.fabrics.protocol import RecordedRequest

SCHEMA = "recording/1"
MIN_REPLACED_INTEGER = 10**8
"""Integers from this size on are replaced, because they are serial numbers and not counts."""
MAX_TEXT_CHARACTERS = 64 * 1024
"""Maximum length of an answer that is not JSON; the rest is left out."""
_TRANSFER_HEADERS = ("date", "connection", "content-length", "transfer-encoding", "keep-alive")
"""Headers that describe only a single transfer."""
_WORD_PATTERN = re.compile(r"""[^\s/\\"'{}\[\](),;=&?<>|#$*%!`]+""")
_ORIGIN_PATTERN = re.compile(r"https?://[^\s/?#\"'<>\\]+", re.IGNORECASE)
_CAMEL_CASE_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SHORT_NUMBER = re.compile(r"[-+]?(0x)?0*(?=[0-9A-Fa-f]*\d)[0-9A-Fa-f]{1,4}h?|\d{1,3}(\.\d{1,3}){1,2}|[.:+_-]+")
"""Pattern of numbers with at most four digits, of versions, and of signs."""
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.+-]+Z?)?")
_VERSION_SUFFIX = re.compile(r"\.v\d+(_\d+)+")
_UUID_PATTERN = re.compile(r"((?:[A-Za-z]+-)?)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HEX_PATTERN = re.compile(r"((?:0x)?)(?=[0-9A-Fa-f]*\d)([0-9A-Fa-f]{5,})")
_KEY_PATTERN = re.compile(r"([A-Za-z]*@(odata|Redfish|Message)\.)?[A-Za-z_() -]*#?|#[A-Za-z_.]*")


@cache
def collect_vocabulary(*sources: Path) -> frozenset[str]:
    """Collect the words in the source code of this package's fabrics and of further files, in lower case.

    Words in camel case also count as their parts.
    """
    words: set[str] = set()
    for path in (*Path(__file__).parents[1].rglob("*.py"), *sources):
        for token in _WORD_PATTERN.findall(path.read_text(encoding="utf-8")):
            word = token.strip(".:")
            words.add(word.lower())
            words.update(part.lower() for part in _CAMEL_CASE_PART.findall(word) if len(part) > 1)
    return frozenset(words)


class Anonymizer:
    """Anonymizer that consistently replaces the names of a site in recorded requests.

    stand_ins: stand-in by replaced word. addresses: name by host and port.
    """

    def __init__(
        self,
        redact_secrets: Callable[[str], str],
        texts_to_keep: Iterable[str],
        names_to_replace: Iterable[str] = (),
        sources: Iterable[Path] = (),
    ) -> None:
        """Prepare the words to keep and to replace.

        Args:
            redact_secrets: function that masks secrets in a text.
            texts_to_keep: texts whose words are all kept, such as models of devices.
            names_to_replace: words that are replaced even if they are known, such as names of hosts.
            sources: further files whose words are known (see `collect_vocabulary`).
        """
        self._redact_secrets = redact_secrets
        self._words_to_keep = {word.lower() for text in texts_to_keep for word in _WORD_PATTERN.findall(text)}
        names_to_replace = {name.lower() for name in names_to_replace}
        self._known_words = (collect_vocabulary(*sources) | self._words_to_keep) - names_to_replace
        self._name_pattern = re.compile(
            rf"(?<![a-z0-9])({'|'.join(map(re.escape, names_to_replace)) or '(?!)'})(?![a-z0-9])"
        )
        self.stand_ins: dict[str, str] = {}
        self.addresses: dict[str, str] = {}

    def anonymize_origin(self, url: str) -> str:
        """Replace the scheme, host and port of a URL by `http://addressN`."""
        netloc = urlsplit(url).netloc.rpartition("@")[2].lower()
        return "http://" + self.addresses.setdefault(netloc, f"address{len(self.addresses) + 1}")

    def anonymize_text(self, text: str) -> str:
        """Replace secrets, addresses and unknown words in a text."""
        visible_text = _ORIGIN_PATTERN.sub(lambda match: self.anonymize_origin(match[0]), self._redact_secrets(text))
        return _WORD_PATTERN.sub(lambda match: self._anonymize_word(match[0]), visible_text)

    def anonymize_value(self, value: Any) -> Any:
        """Replace secrets, names and large integers in a JSON value."""
        if isinstance(value, Mapping):
            return {self._anonymize_key(name): self._anonymize_member(name, member) for name, member in value.items()}
        if isinstance(value, list | tuple):
            return [self.anonymize_value(member) for member in value]
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= MIN_REPLACED_INTEGER:
            return int(self._replace_word(str(value)))
        return self.anonymize_text(value) if isinstance(value, str) else value

    def _anonymize_member(self, name: str, value: Any) -> Any:
        """Replace the value of a member, header or field.

        The value is masked if its name marks it as a secret, even if the value is a known word.
        """
        can_be_secret = isinstance(value, str | int) and not isinstance(value, bool)
        return MASK if can_be_secret and is_secret_name(name) else self.anonymize_value(value)

    def _anonymize_key(self, name: str) -> str:
        """Replace the name of a member if necessary.

        Names are kept unless they contain a number or a dot, or occur as a replaced name elsewhere.
        """
        must_replace = (
            name in self.stand_ins or self._name_pattern.search(name.lower()) or name != self._redact_secrets(name)
        )
        return self.anonymize_text(name) if must_replace or not _KEY_PATTERN.fullmatch(name) else name

    def _anonymize_word(self, word: str) -> str:
        """Replace a word unless it is known. Dots and colons around it are kept."""
        bare_word = word.strip(".:")
        if bare_word.lower() in self.addresses:
            return self.addresses[bare_word.lower()]
        if self._is_known_word(bare_word):
            return word
        return word.replace(bare_word, self._replace_word(bare_word))

    def _is_known_word(self, word: str) -> bool:
        """Return True if a word is kept, such as a word of the adapters, a short number, a version or a time."""
        if word.lower() in self._known_words or word in self.addresses.values():
            return True
        if self._name_pattern.search(word.lower()):
            return False
        if _SHORT_NUMBER.fullmatch(word) or _TIME_PATTERN.fullmatch(word) or word.lower() in self._words_to_keep:
            return True
        letters = _VERSION_SUFFIX.sub("", word)
        parts = _CAMEL_CASE_PART.findall(letters)
        has_only_letters = re.fullmatch("[A-Za-z_.@:-]+", letters) is not None
        return has_only_letters and all(part.lower() in self._known_words for part in parts)

    def _replace_word(self, word: str) -> str:
        """Return the stand-in of a word, which is created at its first occurrence."""
        return self.stand_ins.setdefault(word, _make_stand_in(word, len(self.stand_ins) + 1))

    def anonymize_exchange(self, request: RecordedRequest) -> dict[str, Any]:
        """Convert a recorded request and its answer into an entry of the document, without names of the site."""
        parts = urlsplit(request.target)
        record: dict[str, Any] = {
            "at": self.anonymize_origin(request.origin),
            "ask": f"{request.method} {self.anonymize_text(unquote(parts.path))}",
        }
        if query := parse_qsl(parts.query, keep_blank_values=True):
            record["query"] = {self._anonymize_key(name): self._anonymize_member(name, value) for name, value in query}
        if request.request_body:
            record |= self._anonymize_body("sent", *parse_json(request.request_body))
        record["seconds"] = round(request.seconds, 3)
        if request.status is None:
            return record | {"lost": self.anonymize_text(request.error)}
        masked_headers = dict.fromkeys(AUTHENTICATION_HEADERS & request.headers.keys(), MASK)
        visible_headers = {
            self._anonymize_key(name): self._anonymize_member(name, value)
            for name, value in {**request.headers, **masked_headers}.items()
            if name not in _TRANSFER_HEADERS
        }
        headers = {"headers": visible_headers} if visible_headers else {}
        return (
            record | {"status": request.status, **headers} | self._anonymize_body("answer", request.body, request.text)
        )

    def _anonymize_body(self, name: str, body: Any, text: str) -> dict[str, Any]:
        """Return a body as an entry of the document, as JSON if possible, otherwise as text of limited length."""
        if body is not None:
            return {name: self.anonymize_value(body)}
        return {f"{name}_text": self.anonymize_text(text[:MAX_TEXT_CHARACTERS])} if text else {}


def _make_stand_in(word: str, number: int) -> str:
    """Create a stand-in with the same shape as a word, different from every word that is kept."""
    if match := _UUID_PATTERN.fullmatch(word):
        return f"{match[1]}00000000-0000-4000-8000-{number:012x}"
    if match := _HEX_PATTERN.fullmatch(word):
        length = len(match[2]) - 1
        return match[1] + (f"9{number:0{length}d}" if match[2].isdecimal() else f"e{number:0{length}x}")
    return f"name{number}"


def build_recording(
    kind: str,
    options: Mapping[str, Any],
    system: Mapping[str, Any],
    exchanges: Iterable[RecordedRequest],
    anonymizer: Anonymizer,
) -> dict[str, Any]:
    """Build the JSON document of a recording, without names of the site.

    Args:
        kind: kind of the fabric.
        options: options of the fabric in the system file; those about the login are left out.
        system: further keys of the system file.
        exchanges: recorded requests with their answers.
        anonymizer: replacement of names.
    """
    visible_options = {
        name: value for name, value in options.items() if name not in _OMITTED_OPTIONS and not name.endswith("_env")
    }
    exchanges = list(exchanges)
    for request in exchanges:
        anonymizer.anonymize_origin(request.origin)
    fabric = {name: _anonymize_entry(value, anonymizer) for name, value in visible_options.items()}
    system_entries = {name: _anonymize_entry(value, anonymizer) for name, value in system.items()}
    recording = {"schema_version": SCHEMA, "fabric": {"kind": kind, **fabric}, **system_entries}
    recording["login"] = bool(options.get("credentials"))
    for request in exchanges:
        anonymizer.anonymize_exchange(request)  # First pass: a later answer may show that a key is a name.
    recording["exchanges"] = [anonymizer.anonymize_exchange(request) for request in exchanges]
    return json.loads(json.dumps(recording))  # type: ignore[no-any-return]


_OMITTED_OPTIONS = ("kind", "credentials", "ca_file", "verify_tls", "tunnel", "agent")


def _anonymize_entry(value: Any, anonymizer: Anonymizer) -> Any:
    """Replace names in a value of a system file, including its keys."""
    if isinstance(value, Mapping):
        return {
            anonymizer.anonymize_text(str(key)): _anonymize_entry(member, anonymizer) for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [_anonymize_entry(member, anonymizer) for member in value]
    return anonymizer.anonymize_value(value)
