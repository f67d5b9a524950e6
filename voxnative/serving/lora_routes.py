"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM names them.

vLLM's own routes of these names load any path of the machine, and exist only with
``VLLM_ALLOW_RUNTIME_LORA_UPDATING``; they then answer before these. Here an adapter must lie in
one of the folders that the operator allows, and unloading frees its memory. Several API servers
in front of one engine know nothing of each other's adapters, so that none changes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from voxnative.errors import CheckpointError, ParameterError
from voxnative.serving.http_errors import RequestFailed, SpeechRoute, engine_dead
from voxnative.serving.openapi import ERRORS
from voxnative.serving.server import MODEL_ALIASES, SpeechServer

router = APIRouter(route_class=SpeechRoute, tags=["adapters"])

MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096


class UnloadBody(BaseModel):
    """Body of ``POST /v1/unload_lora_adapter``."""

    model_config = ConfigDict(strict=True, extra="forbid")
    lora_name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)


class LoadBody(UnloadBody):
    """Body of ``POST /v1/load_lora_adapter``."""

    lora_path: str = Field(
        min_length=1, max_length=MAX_PATH_CHARS, description="Directory of the adapter."
    )


@router.post("/v1/load_lora_adapter", response_class=PlainTextResponse, responses=ERRORS)
async def load_lora_adapter(body: LoadBody, request: Request) -> str:
    """Load an adapter; requests choose it by ``lora`` or ``model``, and ``/v1/models`` lists it."""
    server: SpeechServer = request.app.state.voxnative
    refuse_where_several(server)
    if server.is_engine_dead:
        raise engine_dead()
    if body.lora_name in (*server.model_names, *MODEL_ALIASES):
        raise ParameterError("lora_name", body.lora_name, "a name that is not the model's")
    directory = allowed_directory(body.lora_path, server.settings.allowed_lora_dirs)
    try:
        await server.speech.load_lora(body.lora_name, directory)
    except CheckpointError as error:
        raise RequestFailed(
            400,
            "invalid_request_error",
            "invalid_adapter",
            f"field 'lora_path': {error}",
            param="lora_path",
        ) from error
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse, responses=ERRORS)
async def unload_lora_adapter(body: UnloadBody, request: Request) -> str:
    """Unload an adapter; requests that were accepted before keep it to their end."""
    return await _unload(request, body.lora_name)


@router.delete("/v1/load_lora_adapter", response_class=PlainTextResponse, responses=ERRORS)
async def delete_lora_adapter(
    request: Request, lora_name: Annotated[str, Query(min_length=1, max_length=MAX_NAME_CHARS)]
) -> str:
    """The same as ``POST /v1/unload_lora_adapter``."""
    return await _unload(request, lora_name)


async def _unload(request: Request, name: str) -> str:
    server: SpeechServer = request.app.state.voxnative
    refuse_where_several(server)
    if name not in server.speech.loras.names():
        raise RequestFailed(
            404,
            "invalid_request_error",
            "adapter_not_found",
            f"field 'lora_name': no adapter of this name; valid: {server.lora_names()}",
            param="lora_name",
        )
    await server.speech.unload_lora(name)
    return f"Success: LoRA adapter '{name}' removed successfully."


def refuse_where_several(server: SpeechServer) -> None:
    """Adapters stay as they were at the start where several API servers share the engine.

    Raises:
        RequestFailed: 400, with what to do instead.
    """
    if server.n_api_servers > 1:
        raise RequestFailed(
            400,
            "invalid_request_error",
            "several_api_servers",
            f"one of {server.n_api_servers} API servers cannot load or unload an adapter for all;"
            " valid: --lora-modules at the start, or --api-server-count 1",
        )


def allowed_directory(path: str, folders: tuple[str, ...]) -> Path:
    """The directory that a client names, links followed.

    Raises:
        ParameterError: it lies in none of the folders.
    """
    try:
        directory = Path(path).resolve()
    except (OSError, ValueError) as error:  # a loop of links, a NUL byte
        raise ParameterError("lora_path", path, "a path of a directory") from error
    if not any(directory.is_relative_to(Path(folder).resolve()) for folder in folders):
        raise ParameterError(
            "lora_path",
            path,
            "a directory inside a folder that the server allows (setting allowed_lora_dirs)",
        )
    return directory
