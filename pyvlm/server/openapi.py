"""The OpenAPI document: requests by their models, responses by their meaning."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from pyvlm import __version__
from pyvlm.server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from pyvlm.server.wire import WireModel

_MODELS: tuple[type[WireModel], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_PLACE = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "an error, in OpenAI's body",
        "content": {"application/json": {"schema": {"$ref": _PLACE.format(model="Error")}}},
    }
}


def json_body(model: type[WireModel]) -> dict[str, Any]:
    """Arguments of a route whose body is parsed by us."""
    schema = {"$ref": _PLACE.format(model=model.__name__)}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": ERROR_RESPONSES,
    }


def describe(app: FastAPI) -> None:
    """Puts the models of the bodies into the document that FastAPI makes."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            _, found = models_json_schema(
                [(model, "validation") for model in _MODELS], ref_template=_PLACE
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas |= found["$defs"] | {"Error": _ERROR}
            document["info"]["version"] = __version__
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
