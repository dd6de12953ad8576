"""Masking of passwords and tokens in messages, logs and files, in every form in which a server echoes them."""

from __future__ import annotations

import base64
import binascii
import html
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from campaign.common.credentials import MASK, is_secret_name

AUTHENTICATION_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-auth-token", "x-api-key"}
)
"""Headers (lower case) whose values are secrets."""


class SecretRedactor:
    """Redactor that masks the known secrets of one control plane in texts and JSON."""

    def __init__(self) -> None:
        """Create a redactor that knows no secrets yet."""
        self._secret_forms: list[str] = []

    def add_secret(self, secret: object) -> None:
        """Register a secret in all its encoded forms. Values that are empty or not text are ignored."""
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
        self._secret_forms = sorted(forms.union(self._secret_forms), key=lambda form: (-len(form), form))

    def add_header_secrets(self, value: object) -> None:
        """Register the secrets in the value of an authentication header.

        These are the whole value, the part after its scheme, and the password in a Basic header (RFC 7617).
        """
        if not isinstance(value, str) or not value or value in self._secret_forms:
            return
        self.add_secret(value)
        scheme, _, token = value.strip().partition(" ")
        self.add_secret(token.strip())
        if scheme.lower() == "basic":
            try:
                self.add_secret(base64.b64decode(token, validate=True).decode().partition(":")[2])
            except (binascii.Error, ValueError):
                return

    def add_named_secrets(self, value: Any, *, min_length: int = 1) -> None:
        """Register every text in a JSON value or form whose name marks it as a secret.

        Args:
            value: JSON value or form.
            min_length: number of characters below which a text is not registered.
        """
        for secret in _find_named_secrets([value]):
            if len(secret) >= min_length:
                self.add_secret(secret)

    def redact_secrets(self, text: str) -> str:
        """Return the text with every known secret masked."""
        for form in self._secret_forms:
            text = text.replace(form, MASK)
        return text

    def mask_secrets(self, value: Any) -> Any:
        """Return a JSON value or form with secrets masked, identified by their value or by their name."""
        if isinstance(value, Mapping):
            return {
                name: MASK if is_secret_name(name) and isinstance(member, str) else self.mask_secrets(member)
                for name, member in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask_secrets(member) for member in value]
        return MASK if isinstance(value, str) and value in self._secret_forms else value


def _find_named_secrets(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value whose name marks it as a secret."""
    members = value.items() if isinstance(value, Mapping) else ((None, member) for member in value)
    for name, member in members:
        if isinstance(member, str) and is_secret_name(name):
            yield member
        elif isinstance(member, Mapping | list | tuple):
            yield from _find_named_secrets(member)
