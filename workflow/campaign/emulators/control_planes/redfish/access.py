"""Who may do what on an emulated service: accounts with roles, a limited number of sessions, Basic authentication."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from campaign.emulators.control_planes.redfish.documents import (
    ROOT,
    Document,
    RedfishRefusal,
    collection,
    ref,
    resource,
)
from campaign.emulators.control_planes.server import Asked

SESSION_SERVICE = f"{ROOT}/SessionService"
SESSIONS = f"{SESSION_SERVICE}/Sessions"
ACCOUNT_SERVICE = f"{ROOT}/AccountService"
ACCOUNTS = f"{ACCOUNT_SERVICE}/Accounts"
_ROLES = f"{ACCOUNT_SERVICE}/Roles"
_OPERATOR = ["Login", "ConfigureSelf", "ConfigureComponents"]
ROLES = {
    "Administrator": [*_OPERATOR, "ConfigureManager", "ConfigureUsers"],
    "Operator": _OPERATOR,
    "ReadOnly": ["Login", "ConfigureSelf"],
}
_PASSWORD_MIN, _PASSWORD_MAX = 8, 64
_PROPERTIES = {"UserName": str, "Password": str, "RoleId": str, "Enabled": bool, "Locked": bool}


@dataclass
class Account:
    id: str
    user: str
    password: str
    role: str = "Administrator"
    enabled: bool = True


@dataclass
class RedfishSession:
    id: str
    token: str
    account: Account


class Access:
    def __init__(self, user: str, password: str, sessions_max: int) -> None:
        self.accounts = {"1": Account("1", user, password)}
        self.sessions: dict[str, RedfishSession] = {}
        self._sessions_max = sessions_max
        self._number = 1

    def account(self, asked: Asked) -> Account | None:
        """Whose request it is; None for nobody's."""
        if (token := asked.header("X-Auth-Token")) is not None:
            return next((s.account for s in self.sessions.values() if secrets.compare_digest(s.token, token)), None)
        return self._known(asked.basic)

    def _known(self, login: tuple[str, str] | None) -> Account | None:
        return next((a for a in self.accounts.values() if (a.user, a.password) == login and a.enabled), None)

    def log_in(self, body: Any) -> RedfishSession:
        """Raises RedfishRefusal for a wrong password, or when there are as many sessions as there may be."""
        asked = _wanted(body, ("UserName", "Password"))
        account = self._known((asked["UserName"], asked["Password"]))
        if account is None:
            raise RedfishRefusal(
                401, "ResourceAtUriUnauthorized", "the user name or the password is wrong", (SESSIONS,)
            )
        if len(self.sessions) >= self._sessions_max:
            raise RedfishRefusal(503, "SessionLimitExceeded", "there are as many sessions as there may be")
        self._number += 1
        session = RedfishSession(str(self._number), secrets.token_hex(16), account)
        self.sessions[session.id] = session
        return session

    def add(self, body: Any) -> Account:
        asked = _wanted(body, ("UserName", "Password", "RoleId"))
        if any(account.user == asked["UserName"] for account in self.accounts.values()):
            raise RedfishRefusal(400, "ResourceAlreadyExists", f"an account {asked['UserName']} is there")
        self._number += 1
        account = Account(str(self._number), "", "")
        self.alter(account, body)
        self.accounts[account.id] = account
        return account

    def alter(self, account: Account, body: dict[str, Any]) -> None:
        """Raises RedfishRefusal with nothing changed for an unknown property or a bad value."""
        for name, value in body.items():
            if name.startswith("@"):
                continue
            if name not in _PROPERTIES:
                raise RedfishRefusal(400, "PropertyUnknown", f"no property {name}", (name,))
            if not isinstance(value, _PROPERTIES[name]):
                raise RedfishRefusal(400, "PropertyValueTypeError", f"{name}: wrong type", (str(value), name))
            if name == "Password" and not _PASSWORD_MIN <= len(str(value)) <= _PASSWORD_MAX:
                raise RedfishRefusal(
                    400, "PropertyValueFormatError", "a password has 8 to 64 characters", ("***", name)
                )
            if name == "RoleId" and value not in ROLES:
                raise RedfishRefusal(400, "PropertyValueNotInList", f"no role {value}", (str(value), name))
        account.user = body.get("UserName", account.user)
        account.role = body.get("RoleId", account.role)
        account.enabled = body.get("Enabled", account.enabled)
        account.password = body.get("Password", account.password)

    def find(self, path: str) -> Document | None:
        """A resource of sessions, accounts or roles; None for any other path."""
        if path == SESSION_SERVICE:
            return resource(
                path, "SessionService", "v1_1_9", ServiceEnabled=True, SessionTimeout=600, Sessions=ref(SESSIONS)
            )
        if path == ACCOUNT_SERVICE:
            limits = {"MinPasswordLength": _PASSWORD_MIN, "MaxPasswordLength": _PASSWORD_MAX}
            links = {"Accounts": ref(ACCOUNTS), "Roles": ref(_ROLES)}
            return resource(path, "AccountService", "v1_15_0", ServiceEnabled=True, **limits, **links)
        for place, kind, names in (
            (SESSIONS, "Session", self.sessions),
            (ACCOUNTS, "ManagerAccount", self.accounts),
            (_ROLES, "Role", ROLES),
        ):
            if path == place:
                return collection(path, kind, names)
        return self._one(path, *path.rsplit("/", 1))

    def _one(self, path: str, place: str, name: str) -> Document | None:
        if place == SESSIONS and name in self.sessions:
            user = self.sessions[name].account.user
            return resource(path, "Session", "v1_7_0", UserName=user, Password=None)
        if place == ACCOUNTS and name in self.accounts:
            account = self.accounts[name]
            return resource(
                path,
                "ManagerAccount",
                "v1_12_0",
                UserName=account.user,
                Password=None,
                RoleId=account.role,
                Enabled=account.enabled,
                Locked=False,
                AccountTypes=["Redfish"],
                Links={"Role": ref(f"{_ROLES}/{account.role}")},
            )
        if place == _ROLES and name in ROLES:
            return resource(path, "Role", "v1_3_1", RoleId=name, IsPredefined=True, AssignedPrivileges=ROLES[name])
        return None


def _wanted(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """The members that a request must have, all text."""
    for name in names:
        if name not in body:
            raise RedfishRefusal(400, "PropertyMissing", f"{name} is missing", (name,))
        if not isinstance(body[name], str):
            raise RedfishRefusal(400, "PropertyValueTypeError", f"{name} must be text", (str(body[name]), name))
    return body
