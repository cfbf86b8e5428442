"""Request guard: checks host, method and token of every request, and sets the security headers of every response.

On a loopback address no token is needed, but the Host header must name a loopback host, against DNS rebinding. On any
other address every request needs the token: `Authorization: Bearer`, or once `?token=`, which is exchanged for a cookie
that scripts cannot read. Only GET and HEAD are allowed.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "gradwire-token"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`, the one name that needs no DNS."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RequestGuard:
    """ASGI middleware. `token` None means bound to loopback."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to a refused request, or the redirect that removes a token from the URL; None if allowed."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: only GET and HEAD are allowed", 405, {"allow": "GET, HEAD"})
        if self._token is None:
            host = _host(headers.get("host", ""))
            return None if is_loopback(host) else PlainTextResponse("wrong host: open localhost", 421)
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if "token" in query:
            return self._exchange(scope, query)
        if self._matches(_bearer(headers)) or self._matches(_cookie(headers)):
            return None
        return PlainTextResponse("token needed: open the address that `gradwire dashboard` printed", 401)

    def _exchange(self, scope: Scope, query: dict[str, list[str]]) -> Response:
        if not self._matches(query.pop("token")[0]):
            return PlainTextResponse("wrong token", 401)
        rest = urlencode(query, doseq=True)
        # Leading slashes would make the target a URL of another host.
        target = "/" + str(scope["path"]).lstrip("/\\") + (f"?{rest}" if rest else "")
        response = RedirectResponse(target, 303)
        response.set_cookie(COOKIE, self._token or "", httponly=True, samesite="strict", path="/")
        return response

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode()) and bool(given)


def _host(header: str) -> str:
    """The Host header without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _bearer(headers: Headers) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
