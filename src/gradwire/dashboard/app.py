"""App: the dashboard as a Starlette application. GET only; nothing here changes a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from gradwire import __version__
from gradwire.dashboard import schema
from gradwire.dashboard.library import Library
from gradwire.dashboard.live import Live, list_runs
from gradwire.dashboard.openapi import document
from gradwire.dashboard.request_guard import RequestGuard
from gradwire.dashboard.routes import ROUTES, WITH, ApiRoute
from gradwire.errors import ConfigError

STATIC = Path(__file__).parent / "static"
ASSETS = ("app.js", "app.css", "icon.svg")

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def build_app(library: Library, token: str | None = None) -> Starlette:
    """The application; its lifespan starts and stops the library's thread."""
    live = Live(library)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        library.start()
        yield
        live.closing = True
        library.close()

    paths = [
        Route("/", _file("index.html")),
        *(Route(f"/{name}", _file(name)) for name in ASSETS),
        Route("/api/runs", _runs(library)),
        Route("/api/live", _live(live)),
        Route("/api/openapi.json", _openapi()),
        Route("/metrics", _metrics(library)),
        *(Route(f"/api/runs/{{run}}/{route.name}", _route(library, route)) for route in ROUTES),
    ]
    middleware = [Middleware(RequestGuard, token=token), Middleware(GZipMiddleware, minimum_size=2048)]
    app = Starlette(routes=paths, middleware=middleware, lifespan=lifespan)
    app.state.live = live
    return app


def respond(value: object, status: int = 200) -> Response:
    """A JSON response that is not cached."""
    return Response(msgspec.json.encode(value), status, {"cache-control": "no-store"}, "application/json")


def _file(name: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return FileResponse(STATIC / name, headers={"cache-control": "no-cache"})

    return endpoint


def _runs(library: Library) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return respond(schema.Runs(__version__, list_runs(library), library.left_out))

    return endpoint


def _live(live: Live) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if live.full:
            return respond(schema.Refusal("too many open dashboard pages; close one"), 503)
        return StreamingResponse(live.stream(), headers={"cache-control": "no-store"}, media_type="text/event-stream")

    return endpoint


def _openapi() -> Endpoint:
    openapi = document()

    async def endpoint(request: Request) -> Response:
        return respond(openapi)

    return endpoint


def _metrics(library: Library) -> Endpoint:
    """Prometheus metrics of all runs, if prometheus-client is installed."""

    def text() -> tuple[bytes, str]:
        from gradwire.observe.metrics import CONTENT_TYPE, exposition

        runs = library.runs
        with ExitStack() as locks:
            for run in runs.values():
                locks.enter_context(run.lock)
            return exposition({name: run.data.state for name, run in runs.items()}), CONTENT_TYPE

    async def endpoint(request: Request) -> Response:
        try:
            body, kind = await run_in_threadpool(text)
        except ModuleNotFoundError:
            return respond(schema.Refusal("metrics need prometheus-client: pip install 'gradwire[metrics]'"), 501)
        return Response(body, headers={"content-type": kind, "cache-control": "no-store"})

    return endpoint


def _route(library: Library, route: ApiRoute) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        run = library.runs.get(request.path_params["run"])
        if run is None:
            return respond(schema.Refusal("no such run"), 404)

        def locked() -> schema.Response:
            base = library.outcome(request.query_params.get("with")) if WITH in route.parameters else None
            with run.lock:
                return route.handler(run, request.query_params, base)

        try:
            return respond(await run_in_threadpool(locked))
        except ConfigError as error:
            return respond(schema.Refusal(str(error)), 422)

    return endpoint
