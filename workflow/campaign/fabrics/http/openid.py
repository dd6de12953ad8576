"""Tokens of an identity service: OpenID Connect, password grant."""

from __future__ import annotations

import json
import os
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.errors import OutcomeUnknown
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.options import needed_login
from campaign.fabrics.http.response import text

LEEWAY_S = 30.0


class Tokens:
    """The token of a client, renewed before it ends."""

    def __init__(self, client: Client, realm: str, client_id: str, secret_env: str | None) -> None:
        """client: its connection says where user and password come from; realm: the address of one below it."""
        self._client, self._realm = client, realm
        self._client_id, self._secret_env = client_id, secret_env
        self._until_s = 0.0

    def authorize(self, *, again: bool = False) -> None:
        """Have a token that lasts for another request. again: the one that there is was refused.

        Raises ConfigError for credentials that are not there, FabricError when they are refused.
        """
        if self._client.rehearses or (not again and time.time() < self._until_s - LEEWAY_S):
            return
        self._client.authorization = {}
        path = f"{self._realm}/protocol/openid-connect/token"
        try:
            answer = self._client.change("POST", path, form=self._form(), secret=True)
        except OutcomeUnknown as error:
            # Not the outcome of what was asked for: nobody was logged in to ask for it.
            raise FabricError(f"{self._client.base}: cannot log in ({error})") from error
        token = text(answer.body, "access_token")
        if not answer.ok or token is None:
            raise FabricError(
                f"{self._client.base}: realm {self._realm.rpartition('/')[2]} issues no token ({answer.words()}); see "
                "`credentials`, `client_id` and `client_secret_env`"
            )
        self._client.authorization = {"Authorization": f"Bearer {token}"}
        self._until_s = expires_s(token, answer.body)

    def asked(self, send: Callable[[], Answer]) -> Answer:
        """The answer to who has a token; a request that is refused, so that nothing was done, is sent again with a new one."""
        self.authorize()
        answer = send()
        if answer.status in (401, 403):
            self.authorize(again=True)
            answer = send()
        return answer

    def _form(self) -> dict[str, str]:
        found = needed_login(self._client.connection)
        secret = ""
        if name := self._secret_env:
            secret = os.environ.get(name, "")
            if not secret:
                raise ConfigError(
                    f"{self._client.connection.url}: client_secret_env: the environment variable {name} is not set; export it"
                )
        return {
            "client_id": self._client_id,
            "client_secret": secret,
            "username": found.user,
            "password": found.password,
            "scope": "openid",
            "response_type": "id_token token",
            "grant_type": "password",
        }


def expires_s(token: str, answer: Mapping[str, Any]) -> float:
    """Unix time at which a token ends: its own `exp` (RFC 7519), which counts, else the answer's `expires_in`."""
    parts = token.split(".")
    if len(parts) == 3:
        # A token that cannot be read may be good all the same: only its end is not known from it.
        with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            return float(claims["exp"])
    with suppress(TypeError, ValueError, OverflowError):
        return time.time() + float(answer.get("expires_in", 60.0))
    return time.time() + 60.0
