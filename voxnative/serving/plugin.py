"""Entry point of ``vllm.endpoint_plugins``: the speech routes in vLLM's own server.

vLLM loads it where ``VLLM_PLUGINS`` names ``voxnative``; ``voxnative serve`` sees to that. Settings
come through vLLM's ``--additional-config '{"voxnative": {...}}'``.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from vllm.envs import enable_envs_cache

from voxnative.async_api import AsyncVoxNative
from voxnative.serving import batch, lora_routes, speech, voice_routes, websocket
from voxnative.serving.adapters.registry import adapter_for
from voxnative.serving.hosts import HostPolicy
from voxnative.serving.latents import latent_encoder
from voxnative.serving.limits import Admission
from voxnative.serving.media import MediaPolicy
from voxnative.serving.metrics import SpeechMetrics
from voxnative.serving.server import SpeechServer, default_voices_dir
from voxnative.serving.settings import CONFIG_KEY, ServerSettings, SettingsError
from voxnative.serving.voices import VoiceStore


class SpeechEndpoints:
    """Source: vLLM 0.32, ``vllm/plugins/endpoint_plugins/interface.py:EndpointPlugin``."""

    name = "voxnative"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to vLLM's application; every request is compared with all before its own.

        vLLM's own routes for adapters, where they are asked for, stay in front of ours.
        """
        theirs = list(app.router.routes)
        app.include_router(speech.router)
        ours = [route for route in app.router.routes if route not in theirs]
        app.router.routes[:] = [*ours, *theirs]
        for module in (batch, voice_routes, lora_routes, websocket):
            app.include_router(module.router)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Make the routes' shared parts, and warm the engine up.

        Raises:
            SettingsError: a setting is not valid.
            CheckpointError: the model is none that an adapter serves.
        """
        # vLLM asks the environment something for every token. Nothing changes there from now on.
        enable_envs_cache()
        given = args.additional_config or {}
        settings = ServerSettings.from_mapping(given.get(CONFIG_KEY, {}))
        adapter = adapter_for(engine_client.model_config.architecture)
        model = AsyncVoxNative.from_engine(args.model, engine_client)
        model.loras.share(state.openai_serving_models)
        server = SpeechServer(
            speech=model,
            engine_client=engine_client,
            settings=settings,
            adapter=adapter,
            admission=Admission(
                settings.max_concurrency or batch_places(engine_client.vllm_config),
                settings.max_queue,
            ),
            metrics=SpeechMetrics(),
            voices=_voices(engine_client, model, settings),
            media=_media(settings),
            model_names=_names(args),
            n_api_servers=args.api_server_count or 1,
        )
        model.watch_replicas(server.note_replicas)
        state.voxnative = server
        await adapter.warmup(model)


def batch_places(config: Any) -> int:
    """Requests that all replicas together take into their batches."""
    places: int = config.scheduler_config.max_num_seqs
    return places * config.parallel_config.data_parallel_size


def _voices(engine: Any, model: AsyncVoxNative, settings: ServerSettings) -> VoiceStore:
    directory = Path(settings.voices_dir) if settings.voices_dir else default_voices_dir()
    return VoiceStore(
        directory, model.config.vae.sample_rate_hz, latent_encoder(engine, model.config)
    )


def _media(settings: ServerSettings) -> MediaPolicy:
    try:
        hosts = HostPolicy.parse(settings.allowed_media_hosts)
    except ValueError as error:
        raise SettingsError(f"allowed_media_hosts: {error}") from error
    folders = tuple(Path(folder) for folder in settings.allowed_media_dirs)
    return MediaPolicy(folders, hosts, max_bytes=settings.max_upload_bytes)


def _names(args: Namespace) -> tuple[str, ...]:
    names = args.served_model_name or args.model
    return (names,) if isinstance(names, str) else tuple(names)
