"""What the live page answers to: the page, its JSON, its events, the metrics. docs/api.md describes all of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from everstep.controller.outlook import Outlook
from everstep.controller.web import shapes
from everstep.controller.web.feed import Feed, Glance, Listener
from everstep.controller.web.pictures import NARROW, WIDE, DrawError, Pictures
from everstep.observe.metrics import Metrics
from everstep.observe.report.svg import asset

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html"),
    "/live.js": ("live.js", "text/javascript"),
    "/live.css": ("live.css", "text/css"),
}

SLOW_S = 10.0
"""A listener that takes nothing for so long has gone, or should come again."""


PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A picture by itself brings its own style, and nothing else."""


def build(outlook: Outlook, feed: Feed, glance: Glance, pictures: Pictures) -> Starlette:
    metrics = Metrics(outlook)
    ledger = outlook.ledger

    def answer(path: str, build: Callable[[], bytes], media_type: str) -> Route:
        async def endpoint(_: Request) -> Response:
            return Response(build(), media_type=media_type)

        return Route(path, endpoint)

    def as_json(path: str, build: Callable[[], object]) -> Route:
        return answer(path, lambda: msgspec.json.encode(build()), "application/json")

    async def drawn(name: str, width: int, media_type: str) -> Response:
        if not pictures.known(name):
            raise HTTPException(404)
        try:
            text = await pictures.get(name, width)
        except DrawError as error:
            log.warning("no picture %s: %s", name, error)
            return PlainTextResponse(f"no picture: {error}\n", 503)
        return Response(text, media_type=media_type, headers={"Content-Security-Policy": PICTURE_POLICY})

    async def picture(request: Request) -> Response:
        width = NARROW if "narrow" in request.query_params else WIDE
        return await drawn(request.path_params["name"], width, "image/svg+xml")

    async def lanes(request: Request) -> Response:
        return await drawn(f"lanes-{request.path_params['number']}", WIDE, "application/json")

    return Starlette(
        routes=[
            *(answer(path, (STATIC / name).read_bytes, kind) for path, (name, kind) in FILES.items()),
            answer("/picture.css", lambda: asset("picture.css").encode(), "text/css"),
            answer("/api/status", glance.text, "application/json"),
            as_json("/api/recoveries", lambda: shapes.recoveries(ledger)),
            as_json("/api/checkpoints", lambda: shapes.checkpoints(ledger)),
            Route("/api/lanes/{number}", lanes),
            answer("/metrics", metrics.text, metrics.content_type),
            answer("/healthz", lambda: b"ok\n", "text/plain"),
            Route("/picture/{name}.svg", picture),
            Route("/events", Events(feed), methods=["GET", "HEAD"]),
        ],
        exception_handlers={HTTPException: _not_found},
    )


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}; docs/api.md names what there is\n", error.status_code)


class Events:
    """Server-sent events, until the listener goes, falls behind, or the job is over."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            return await Response(media_type="text/event-stream")(scope, receive, send)
        if self._feed.full:
            headers = {"Retry-After": "5"}
            return await PlainTextResponse("too many listeners\n", 503, headers)(scope, receive, send)
        with self._feed.listener() as listener:
            telling = asyncio.create_task(_tell(listener, send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                telling.cancel()
                leaving.cancel()
        if telling.done() and not telling.cancelled():
            telling.result()
        return None


async def _tell(listener: Listener, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while (event := await listener.hear()) is not None:
        try:
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:
            return
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
