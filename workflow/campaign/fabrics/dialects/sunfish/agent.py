"""The agent behind Sunfish, asked itself: what it has is what the fabric does."""

from __future__ import annotations

from urllib.parse import urlsplit

from campaign.errors import FabricError
from campaign.fabrics.dialects.redfish.answers import listed, local, next_page, uri
from campaign.fabrics.dialects.sunfish.connections import Connection, connection
from campaign.fabrics.dialects.sunfish.options import Options
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.json_values import Json


class Agent:
    """One agent. It is told no login: whatever Sunfish says of its address, nobody's password goes there."""

    def __init__(self, options: Options, host: str, path: str) -> None:
        """host: as Sunfish has it, with or without a scheme; path: its list of connections, below the host."""
        where = host if "://" in host else f"{urlsplit(options.url).scheme}://{host}"
        self.client = Client(options.model_copy(update={"url": where}))
        self._path = path

    def connections(self) -> tuple[Connection, ...]:
        """Everything that it lists; nothing where it has no list, as some have none while there is nothing to list.

        Raises FabricError for an agent that is not there, or that does not have the fabric at all.
        """
        found: list[Connection] = []
        page: str | None = self._path
        while page is not None:
            body = self._get(page)
            if body is None:
                break
            whole = (member if set(member) - {"@odata.id"} else self._get(uri(member) or "") for member in listed(body))
            found += [connection(member) for member in whole if member is not None]
            page = next_page(body)
        if not found and self._get(self._path) is None and self._get(self._path.rpartition("/")[0]) is None:
            raise FabricError(f"{self.client.base}{self._path}: the agent has no such fabric; {REMEDY}")
        return tuple(found)

    def _get(self, path: str) -> Json | None:
        """A resource of the agent; None where it has none of that name."""
        try:
            answer = self.client.get(local(path))
        except FabricError as error:
            raise FabricError(f"{error}: this is Sunfish's agent; {REMEDY}") from error
        if answer.status == 404:
            return None
        if not answer.ok:
            raise FabricError(f"GET {self.client.base}{path}: {answer.words()}; this is Sunfish's agent; {REMEDY}")
        return answer.members()


REMEDY = "give its list of connections in `agent_url`, or set `ask_agent: false`"
