"""Who may do what on the emulated service: accounts with roles, sessions of which there are few, Basic authentication."""

from __future__ import annotations

import secrets
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from campaign.testbed.control_planes.redfish.composition import Refused
from campaign.testbed.control_planes.redfish.documents import ROOT, Document, collection, ref
from campaign.testbed.control_planes.redfish.variant import Variant

SESSION_SERVICE = f"{ROOT}/SessionService"
SESSIONS = f"{SESSION_SERVICE}/Sessions"
ACCOUNT_SERVICE = f"{ROOT}/AccountService"
ACCOUNTS = f"{ACCOUNT_SERVICE}/Accounts"
ROLES = {
    "Administrator": ["Login", "ConfigureManager", "ConfigureUsers", "ConfigureSelf", "ConfigureComponents"],
    "Operator": ["Login", "ConfigureSelf", "ConfigureComponents"],
    "ReadOnly": ["Login", "ConfigureSelf"],
}
PASSWORD_MIN, PASSWORD_MAX = 8, 64


@dataclass
class Account:
    id: str
    user: str
    password: str
    role: str = "Administrator"
    enabled: bool = True


@dataclass
class Session:
    id: str
    token: str
    account: Account


class Access:
    """Accounts and sessions."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self.accounts = {"1": Account("1", variant.user, variant.password)}
        self.sessions: dict[str, Session] = {}
        self._number = 1

    def account(self, headers: Mapping[str, str]) -> Account | None:
        """Whose request it is; None for nobody's."""
        lower = {name.lower(): value for name, value in headers.items()}
        if (token := lower.get("x-auth-token")) is not None:
            session = next((s for s in self.sessions.values() if secrets.compare_digest(s.token, token)), None)
            return session.account if session else None
        kind, _, word = lower.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            user, _, password = b64decode(word).decode().partition(":")
        except (Error, UnicodeDecodeError):
            return None
        return self._known(user, password)

    def _known(self, user: str, password: str) -> Account | None:
        return next((a for a in self.accounts.values() if (a.user, a.password) == (user, password) and a.enabled), None)

    def log_in(self, body: Any) -> Session:
        """Raises Refused for a wrong password, or when there are as many sessions as there may be."""
        asked = _wanted(body, ("UserName", "Password"))
        account = self._known(asked["UserName"], asked["Password"])
        if account is None:
            raise Refused(
                401, "Base.1.19.ResourceAtUriUnauthorized", "the user name or the password is wrong", (SESSIONS,)
            )
        if len(self.sessions) >= self._variant.sessions_max:
            raise Refused(503, "Base.1.19.SessionLimitExceeded", "there are as many sessions as there may be")
        self._number += 1
        session = Session(str(self._number), secrets.token_hex(16), account)
        self.sessions[session.id] = session
        return session

    def add(self, body: Any) -> Account:
        asked = _wanted(body, ("UserName", "Password", "RoleId"))
        if any(account.user == asked["UserName"] for account in self.accounts.values()):
            raise Refused(400, "Base.1.19.ResourceAlreadyExists", f"an account {asked['UserName']} is there")
        self._number += 1
        account = Account(str(self._number), asked["UserName"], "")
        self.alter(account, body)
        self.accounts[account.id] = account
        return account

    def alter(self, account: Account, body: Any) -> None:
        """Raises Refused with nothing changed for an unknown property or a bad value."""
        known = {"UserName": str, "Password": str, "RoleId": str, "Enabled": bool, "Locked": bool}
        for name, value in (body if isinstance(body, dict) else {}).items():
            if name.startswith("@"):
                continue
            if name not in known:
                raise Refused(400, "Base.1.19.PropertyUnknown", f"no property {name}", (name,))
            if not isinstance(value, known[name]):
                raise Refused(400, "Base.1.19.PropertyValueTypeError", f"{name}: wrong type", (str(value), name))
            if name == "Password" and not PASSWORD_MIN <= len(str(value)) <= PASSWORD_MAX:
                raise Refused(
                    400, "Base.1.19.PropertyValueFormatError", "a password has 8 to 64 characters", ("***", name)
                )
            if name == "RoleId" and value not in ROLES:
                raise Refused(400, "Base.1.19.PropertyValueNotInList", f"no role {value}", (str(value), name))
        account.user = body.get("UserName", account.user)
        account.role = body.get("RoleId", account.role)
        account.enabled = body.get("Enabled", account.enabled)
        if "Password" in body:
            account.password = body["Password"]

    def find(self, path: str) -> Document | None:
        """A resource of sessions, accounts or roles; None for any other path."""
        place, _, name = path.rpartition("/")
        match place, name:
            case (_, "SessionService") if path == SESSION_SERVICE:
                return {
                    "@odata.id": path,
                    "@odata.type": "#SessionService.v1_1_9.SessionService",
                    "Id": name,
                    "Name": "Session Service",
                    "ServiceEnabled": True,
                    "SessionTimeout": 600,
                    "Sessions": ref(SESSIONS),
                }
            case (_, "Sessions") if path == SESSIONS:
                return collection(path, "Session", "Sessions", list(self.sessions))
            case (_, "AccountService") if path == ACCOUNT_SERVICE:
                return {
                    "@odata.id": path,
                    "@odata.type": "#AccountService.v1_15_0.AccountService",
                    "Id": name,
                    "Name": "Account Service",
                    "ServiceEnabled": True,
                    "MinPasswordLength": PASSWORD_MIN,
                    "MaxPasswordLength": PASSWORD_MAX,
                    "Accounts": ref(ACCOUNTS),
                    "Roles": ref(f"{ACCOUNT_SERVICE}/Roles"),
                }
            case (_, "Accounts") if path == ACCOUNTS:
                return collection(path, "ManagerAccount", "Accounts", list(self.accounts))
            case (_, "Roles") if place == ACCOUNT_SERVICE:
                return collection(path, "Role", "Roles", list(ROLES))
        return self._one(path, place, name)

    def _one(self, path: str, place: str, name: str) -> Document | None:
        if place == SESSIONS and name in self.sessions:
            return {
                "@odata.id": path,
                "@odata.type": "#Session.v1_7_0.Session",
                "Id": name,
                "Name": "User Session",
                "UserName": self.sessions[name].account.user,
                "Password": None,
            }
        if place == ACCOUNTS and name in self.accounts:
            account = self.accounts[name]
            return {
                "@odata.id": path,
                "@odata.type": "#ManagerAccount.v1_12_0.ManagerAccount",
                "Id": name,
                "Name": "User Account",
                "UserName": account.user,
                "Password": None,
                "RoleId": account.role,
                "Enabled": account.enabled,
                "Locked": False,
                "AccountTypes": ["Redfish"],
                "Links": {"Role": ref(f"{ACCOUNT_SERVICE}/Roles/{account.role}")},
            }
        if place == f"{ACCOUNT_SERVICE}/Roles" and name in ROLES:
            return {
                "@odata.id": path,
                "@odata.type": "#Role.v1_3_1.Role",
                "Id": name,
                "RoleId": name,
                "Name": name,
                "IsPredefined": True,
                "AssignedPrivileges": ROLES[name],
            }
        return None


def _wanted(body: Any, names: tuple[str, ...]) -> dict[str, str]:
    """The members that a request must have, all text."""
    found = body if isinstance(body, dict) else {}
    for name in names:
        if name not in found:
            raise Refused(400, "Base.1.19.PropertyMissing", f"{name} is missing", (name,))
        if not isinstance(found[name], str):
            raise Refused(400, "Base.1.19.PropertyValueTypeError", f"{name} must be text", (str(found[name]), name))
    return found
