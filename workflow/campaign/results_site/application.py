"""The requests: pages, pictures and data over a shelf of campaigns. GET and HEAD only; nothing that is sent is ever run.

Pages have no script, so that a policy of `default-src 'none'` costs nothing; live pages ask again by themselves.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from campaign.documents.metric import metric_of
from campaign.errors import CampaignError
from campaign.insight.compare import compare
from campaign.paths import REPORTS
from campaign.report.compare_page import compare_page
from campaign.report.figure import Drawing, Figure, all_figures, data_of
from campaign.report.sections.coverage import state_counts
from campaign.report.svg import notice
from campaign.report.templates import STYLE, templates
from campaign.results_site import pages
from campaign.results_site.pages import Filter
from campaign.results_site.results_index import Shelf, Shelved, tables_or_problem
from campaign.tables.io import Tables

LIVE_S = 5
"""A page of a campaign that is running asks again after so many seconds."""
_COOKIE = "campaign-token"
_DRAWINGS = 256  # kept drawn
_PAGE = "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
# Pages that stand alone, as files, carry their style with them.
_ALONE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OURS = ("localhost", "127.0.0.1", "[::1]")
# In a picture of its own, ink has no page to take its colour from.
_INK = "<style>:root{color:#1b1f24}@media(prefers-color-scheme:dark){:root{color:#e6e9ec}}</style>"


def application(root: Path, token: str | None = None) -> ASGIApp:
    """The page over the campaigns below a results root.

    token: what a reader has to know; without one, only requests that name this machine (loopback) are answered, so that no page
    of another site can ask through a reader's browser.
    """
    site = _Site(Shelf(root))
    routes = [
        Route("/", site.index),
        Route("/compare", site.compare),
        Route("/style.css", site.style),
        Route("/campaign/{name}", site.campaign),
        Route("/campaign/{name}/report", site.report),
        Route("/campaign/{name}/{table}.csv", site.csv),
        Route("/campaign/{name}/figure/{figure}.svg", site.picture),
        Route("/campaign/{name}/figure/{figure}.csv", site.data),
        Route("/campaign/{name}/figure/{figure}", site.figure),
    ]
    handlers: dict[Any, Any] = {HTTPException: site.refused, CampaignError: site.failed, Exception: site.broken}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), token)


class _Guard:
    """Around everything, also answers that went wrong: who may ask, and what a browser may do with the answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {"Content-Security-Policy": _PAGE, **_HEADERS}.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is read-only\n", 405, {"Allow": "GET, HEAD"})
        if self._token is None:
            host = request.headers.get("host", "").rsplit(":", 1)
            name = host[0] if len(host) == 1 or host[1].isdecimal() else ":".join(host)
            return (
                None if name in _OURS else PlainTextResponse("this server answers requests for localhost only\n", 421)
            )
        given = request.query_params.get("token")
        if given is not None and _same(given, self._token):
            # Out of the address bar, its history, and what a person copies from it.
            answer = RedirectResponse(str(request.url.remove_query_params("token").replace(scheme="", netloc="")), 303)
            answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        if _same(request.cookies.get(_COOKIE, ""), self._token):
            return None
        return PlainTextResponse("this server needs a token: open the address that 'campaign serve' printed\n", 403)


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


class _Site:
    """The pages of the site, one method each."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._templates = templates(REPORTS / "results_site")
        self._figures = all_figures()
        self._drawings: OrderedDict[tuple[Any, ...], Drawing] = OrderedDict()
        # Matplotlib's style is one for the process.
        self._drawing = threading.Lock()

    def index(self, request: Request) -> Response:
        campaigns = [self._listed(shelved) for shelved in self._shelf.campaigns()]
        live = any(each["progress"]["live"] for each in campaigns)
        return self._page("index.html.j2", campaigns=campaigns, root=str(self._shelf.root), live=live)

    def campaign(self, request: Request) -> Response:
        shelved = self._found(request)
        asked = Filter.of(request.query_params.multi_items())
        tables, problem = tables_or_problem(shelved)
        progress = pages.progress_words(shelved.progress(), time.time())
        known: dict[str, Any] = {
            "name": shelved.name,
            "progress": progress,
            "problem": problem,
            "asked": asked,
            "query": asked.query(page=1),
            "live": progress["live"],
            "report": shelved.results.report.is_file(),
            "measured": tables is not None,
        }
        if tables is not None:
            shown = pages.filtered(tables, asked)
            known |= {
                "said": pages.said_of(tables),
                "choices": pages.choices(tables, asked),
                "counts": state_counts(shown.cells),
                "coverage": pages.coverage(shown.cells, asked),
                "cells": pages.cell_rows(shown.cells, asked, metric_of(shown.context)),
                "figures": list(self._figures.values()),
            }
        return self._page("campaign.html.j2", **known)

    def figure(self, request: Request) -> Response:
        shelved, figure, drawing, asked = self._asked(request)
        known = {"name": shelved.name, "figure": figure, "drawing": drawing, "query": asked.query(page=1)}
        return self._page("figure.html.j2", **known, live=False)

    def picture(self, request: Request) -> Response:
        _, figure, drawing, _ = self._asked(request)
        why = "see its table" if drawing.rows else f"left out because {drawing.empty_reason}"
        svg = drawing.svg or notice(figure.anchor, f"{figure.title}: {why}")
        end = svg.index(">") + 1
        headers = {"Content-Security-Policy": _ALONE}
        return Response(svg[:end] + _INK + svg[end:], 200, headers, "image/svg+xml")

    def data(self, request: Request) -> Response:
        _, figure, drawing, _ = self._asked(request)
        return _csv(figure.csv(drawing), f"{figure.name}.csv")

    def csv(self, request: Request) -> Response:
        shelved = self._found(request)
        name = request.path_params["table"]
        if name not in ("runs", "cells"):
            raise HTTPException(404, "no such table; there are: runs, cells")
        shown = pages.filtered(self._tables(shelved), Filter.of(request.query_params.multi_items()))
        text = getattr(shown, name).to_csv(index=False, lineterminator="\n")
        return _csv(text, f"{shelved.name}-{name}.csv")

    def report(self, request: Request) -> Response:
        path = self._found(request).results.report
        if not path.is_file():
            raise HTTPException(404, "no report yet: it is written at the end of the campaign, or by 'campaign report'")
        return FileResponse(path, headers={"Content-Security-Policy": _ALONE}, media_type="text/html")

    def compare(self, request: Request) -> Response:
        names = [each.name for each in self._shelf.campaigns()]
        asked = [request.query_params.get(side, "") for side in ("a", "b")]
        if not all(asked):
            return self._page("compare.html.j2", names=names, a=asked[0], b=asked[1], live=False)
        found = [self._shelf.campaign(name) for name in asked]
        for name, shelved in zip(asked, found, strict=True):
            if shelved is None:
                raise HTTPException(404, f"there is no campaign {name!r}; there are {', '.join(names)}")
        first, second = (self._tables(shelved) for shelved in found if shelved)
        return HTMLResponse(compare_page(compare(first, second), back="/"), headers={"Content-Security-Policy": _ALONE})

    def style(self, request: Request) -> Response:
        own = REPORTS / "results_site" / "results_site.css"
        return Response(STYLE.read_text("utf-8") + own.read_text("utf-8"), media_type="text/css")

    def refused(self, request: Request, error: HTTPException) -> Response:
        return self._problem(error.detail, error.status_code)

    def failed(self, request: Request, error: CampaignError) -> Response:
        return self._problem(str(error), 422)

    def broken(self, request: Request, error: Exception) -> Response:
        return self._problem(f"{type(error).__name__}: {error}; see the terminal of 'campaign serve' for details", 500)

    def _problem(self, words: str, status: int) -> Response:
        page = self._page("problem.html.j2", words=words, live=False)
        page.status_code = status
        return page

    def _page(self, template: str, **known: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(**known, live_s=LIVE_S))

    def _listed(self, shelved: Shelved) -> Mapping[str, Any]:
        tables, problem = tables_or_problem(shelved)
        return {
            "name": shelved.name,
            "progress": pages.progress_words(shelved.progress(), time.time()),
            "problem": problem,
            "said": pages.said_of(tables) if tables else None,
            "counts": state_counts(tables.cells) if tables else [],
            "report": shelved.results.report.is_file(),
        }

    def _found(self, request: Request) -> Shelved:
        name = request.path_params["name"]
        shelved = self._shelf.campaign(name)
        if shelved is None:
            raise HTTPException(404, f"there is no campaign {name!r} below {self._shelf.root}")
        return shelved

    def _tables(self, shelved: Shelved) -> Tables:
        tables, problem = tables_or_problem(shelved)
        if tables is None:
            raise HTTPException(404, f"{shelved.name}: {problem}")
        return tables

    def _asked(self, request: Request) -> tuple[Shelved, Figure, Drawing, Filter]:
        shelved = self._found(request)
        figure = self._figures.get(request.path_params["figure"])
        if figure is None:
            raise HTTPException(404, f"there is no such figure; there are {', '.join(self._figures)}")
        asked = Filter.of(request.query_params.multi_items())
        shown = pages.filtered(self._tables(shelved), asked)
        return shelved, figure, self._drawn(shelved, shown, asked, figure), asked

    def _drawn(self, shelved: Shelved, tables: Tables, asked: Filter, figure: Figure) -> Drawing:
        """A figure, drawn once for the same tables and filter."""
        key = shelved.name, shelved.version, asked.query(page=1), figure.name
        with self._drawing:
            if key not in self._drawings:
                self._drawings[key] = figure.draw(data_of(tables))
                if len(self._drawings) > _DRAWINGS:
                    self._drawings.popitem(last=False)
            self._drawings.move_to_end(key)
            return self._drawings[key]


def _csv(text: str, name: str) -> Response:
    return Response(text, 200, {"Content-Disposition": f'attachment; filename="{name}"'}, "text/csv")
