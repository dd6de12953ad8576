"""Masking of passwords and tokens in messages, logs and files, in every form in which a server echoes them."""

from __future__ import annotations

import base64
import binascii
import html
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from campaign.common.credentials import MASK, names_secret

AUTHENTICATING = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-auth-token", "x-api-key"}
)
"""Headers (lower case) whose values are secrets."""


class Hidden:
    """Collection of the known secrets of one control plane, which masks them in texts and JSON."""

    def __init__(self) -> None:
        """Start without any secret."""
        self._forms: list[str] = []

    def add(self, secret: object) -> None:
        """Register a secret in all its encoded forms. Empty values and values that are not text are ignored."""
        if not isinstance(secret, str) or not secret.strip():
            return
        forms = {
            secret,
            " ".join(secret.split()),
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            repr(secret)[1:-1],
            html.escape(secret),
            quote(secret, errors="replace"),
            quote(secret, safe="", errors="replace"),
            quote_plus(secret, errors="replace"),
            quote_plus(secret, safe="/", errors="replace"),
        }
        # Longest first, because a secret may be a part of another.
        self._forms = sorted(forms.union(self._forms), key=lambda form: (-len(form), form))

    def add_header(self, value: object) -> None:
        """Register the secrets in the value of an authentication header.

        These are the whole value, the part after its scheme, and the password in a Basic header (RFC 7617).
        """
        if not isinstance(value, str) or not value or value in self._forms:
            return
        self.add(value)
        scheme, _, rest = value.strip().partition(" ")
        self.add(rest.strip())
        if scheme.lower() == "basic":
            try:
                self.add(base64.b64decode(rest, validate=True).decode().partition(":")[2])
            except (binascii.Error, ValueError):
                return

    def add_from(self, value: Any, *, shortest: int = 1) -> None:
        """Register every text in a JSON value or form whose name marks it as a secret.

        Args:
            value: JSON value or form.
            min_length: number of characters below which a text is not registered.
        """
        for secret in _secrets([value]):
            if len(secret) >= shortest:
                self.add(secret)

    def scrub(self, text: str) -> str:
        """Return the text with every known secret masked."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def masked(self, value: Any) -> Any:
        """Return a JSON value or form with secrets masked, identified by their value or by their name."""
        if isinstance(value, Mapping):
            return {
                name: MASK if names_secret(name) and isinstance(one, str) else self.masked(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.masked(one) for one in value]
        return MASK if isinstance(value, str) and value in self._forms else value


def _secrets(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value whose name marks it as a secret."""
    named = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    for name, one in named:
        if isinstance(one, str) and names_secret(name):
            yield one
        elif isinstance(one, Mapping | list | tuple):
            yield from _secrets(one)
