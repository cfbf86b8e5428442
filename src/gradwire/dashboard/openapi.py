"""OpenAPI: the interface's description, made from its routes and answers."""

from __future__ import annotations

from typing import Any

import msgspec

from gradwire import __version__
from gradwire.dashboard import answers as a
from gradwire.dashboard.routes import ROUTES, Parameter

_JSON = "application/json"


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    kinds: list[type] = [a.Runs, a.RunsChanged, a.Refusal, *(route.returns for route in ROUTES)]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {
        "/api/runs": _get("runs", "Every run.", _answer(schema[a.Runs]), []),
        "/api/live": _get(
            "live", "Server-sent events: `pulse` when a run changed.", _stream(schema[a.RunsChanged]), []
        ),
    }
    for route in ROUTES:
        parameters = [_run_parameter(), *map(_parameter, route.parameters)]
        answers = _answer(schema[route.returns]) | _refusals(schema[a.Refusal])
        paths[f"/api/runs/{{run}}/{route.name}"] = _get(route.name, route.about, answers, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "gradwire dashboard", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _get(name: str, about: str, responses: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": about, "parameters": parameters, "responses": responses}}


def _answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "The answer.", "content": {_JSON: {"schema": schema}}}}


def _stream(schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "Events.", "content": {"text/event-stream": {"schema": schema}}}}


def _refusals(schema: dict[str, Any]) -> dict[str, Any]:
    content = {_JSON: {"schema": schema}}
    return {
        "404": {"description": "No such run.", "content": content},
        "422": {"description": "A parameter is wrong.", "content": content},
    }


def _run_parameter() -> dict[str, Any]:
    return {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    if parameter.text:
        schema: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 200}
    else:
        kind = "integer" if parameter.whole else "number"
        schema = {"type": kind, "minimum": parameter.low, "maximum": parameter.high}
    found = {"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema}
    return found | ({"required": True} if parameter.required else {})
