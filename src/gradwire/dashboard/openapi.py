"""OpenAPI: the API's description, made from its routes and its schema."""

from __future__ import annotations

from typing import Any

import msgspec

from gradwire import __version__
from gradwire.dashboard import schema
from gradwire.dashboard.routes import MAX_NAMES, ROUTES, Parameter

_JSON = "application/json"


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    kinds: list[type] = [schema.Runs, schema.RunsChanged, schema.Refusal, *(route.returns for route in ROUTES)]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    of = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {
        "/api/runs": _get("runs", "Every run.", _success(of[schema.Runs]), []),
        "/api/live": _get(
            "live", "Server-sent events: `pulse` when a run changed.", _stream(of[schema.RunsChanged]), []
        ),
    }
    for route in ROUTES:
        parameters = [_run_parameter(), *map(_parameter, route.parameters)]
        responses = _success(of[route.returns]) | _refusals(of[schema.Refusal])
        paths[f"/api/runs/{{run}}/{route.name}"] = _get(route.name, route.about, responses, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "gradwire dashboard", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _get(name: str, about: str, responses: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": about, "parameters": parameters, "responses": responses}}


def _success(reference: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "The response.", "content": {_JSON: {"schema": reference}}}}


def _stream(reference: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "Events.", "content": {"text/event-stream": {"schema": reference}}}}


def _refusals(reference: dict[str, Any]) -> dict[str, Any]:
    content = {_JSON: {"schema": reference}}
    return {
        "404": {"description": "No such run.", "content": content},
        "422": {"description": "A parameter is invalid.", "content": content},
    }


def _run_parameter() -> dict[str, Any]:
    return {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    if parameter.single:
        kind: dict[str, Any] = {"type": "string"}
    elif parameter.text:
        kind = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_NAMES}
    else:
        number = "integer" if parameter.whole else "number"
        kind = {"type": number, "minimum": parameter.low, "maximum": parameter.high}
    found = {"name": parameter.name, "in": "query", "description": parameter.about, "schema": kind}
    return found | ({"required": True} if parameter.required else {})
