"""Who may ask, and for what: reading only, from this machine or with the token. The outermost layer of every request.

On loopback everybody on the machine may read, but no page of another site: a name that somebody else's DNS gives to
127.0.0.1 is refused by the Host header. Elsewhere each request has to bring the token, once in the link, then in the
cookie that it is answered with; or as a bearer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.wire.auth import Token, is_loopback

log = logging.getLogger(__name__)

OPEN = ("/healthz",)
"""Says nothing about the job, so that a probe needs no token."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    def __init__(self, app: ASGIApp, host: str, token: Token | None, cookie: str) -> None:
        self._app = app
        self._host = host
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._app
        try:
            await answer(scope, receive, guarded)
        except asyncio.CancelledError:
            raise
        except Exception:  # the supervisor of the page: a bug that one request found must not end the others
            log.exception("the live page failed at %s", scope["path"])
            raise

    def _refusal(self, scope: Scope) -> Response | None:
        """None if it may pass. The link with the token is answered with a cookie and the link without."""
        headers = Headers(scope=scope)
        if self._token is None and not _is_local(headers.get("host", ""), self._host):
            return _say(421, "this is the live page of an everstep job on 127.0.0.1: ask for it by that name")
        if scope["method"] not in ("GET", "HEAD"):
            return _say(405, "the live page is only for reading", {"Allow": "GET, HEAD"})
        if self._token is None or scope["path"] in OPEN:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and self._is_token(given):
            return self._let_in(scope["path"])
        if self._is_token(_bearer(headers)) or self._is_token(self._from_cookie(headers)):
            return None
        return _say(401, "the link with the token is in web.json of the run directory", {"WWW-Authenticate": "Bearer"})

    def _let_in(self, path: str) -> Response:
        assert self._token is not None
        answer = RedirectResponse(path, 303)
        answer.set_cookie(self._cookie, self._token.text, httponly=True, samesite="lax")
        return answer

    def _is_token(self, text: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(text.encode(), self._token.text.encode())

    def _from_cookie(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""


def _is_local(host: str, bound: str) -> bool:
    """The Host header names this machine as such, or as the page was bound; whatever the port, as through a tunnel."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    return is_loopback(name) or name == bound


def _bearer(headers: Headers) -> str:
    kind, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def _say(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", code, headers)
