"""What the server takes from vLLM 0.32 is there, with the signatures it relies on."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points

import pytest
from fastapi import FastAPI

from voxnative.serving.plugin import SpeechEndpoints


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_entry_point_is_an_endpoint_plugin() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    (point,) = entry_points(group="vllm.endpoint_plugins", name="voxnative")
    assert point.load() is SpeechEndpoints
    plugin = SpeechEndpoints()
    assert isinstance(plugin, EndpointPlugin)
    assert parameters(EndpointPlugin.init_state)[1:] == parameters(plugin.init_state)
    assert parameters(EndpointPlugin.attach_router)[1:] == parameters(plugin.attach_router)


def test_the_plugin_is_loaded_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.plugins import load_endpoint_plugins

    monkeypatch.setenv("VLLM_PLUGINS", "voxnative")
    (plugin,) = load_endpoint_plugins(("generate",))
    assert plugin.name == "voxnative"
    assert load_endpoint_plugins(("embed",)) == []


def test_all_routes_are_attached() -> None:
    app = FastAPI()
    SpeechEndpoints().attach_router(app)
    paths = {getattr(route, "path", None) for route in app.routes}
    assert {"/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"} <= paths
    assert "/v1/audio/speech/stream" in paths
    assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= paths
    assert getattr(app.routes[0], "path", None) == "/v1/audio/speech"  # found at once


def test_the_launchers_functions() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args

    assert parameters(make_arg_parser) == ["parser"]
    assert parameters(cli_env_setup) == []
    assert parameters(configure_logging_from_args)[0] == "args"
    assert parameters(ServeSubcommand.cmd) == ["args"]
    assert parameters(ServeSubcommand.validate) == ["self", "args"]


def test_the_engine_says_whether_it_lives() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    assert isinstance(AsyncLLM.errored, property)


def test_the_servers_table_of_adapters() -> None:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    class Client:
        model_config = renderer = input_processor = None

    models = OpenAIServingModels(Client(), [])  # type: ignore[arg-type]
    assert models.lora_requests == {}
    assert [models.lora_id_counter.inc(1), models.lora_id_counter.inc(1)] == [1, 2]


def test_the_environment_can_be_read_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs

    name = "VLLM_COMPUTE_NANS_IN_LOGITS"  # asked for every token
    try:
        envs.enable_envs_cache()
        before = envs.VLLM_COMPUTE_NANS_IN_LOGITS
        monkeypatch.setenv(name, str(int(not before)))
        assert before == envs.VLLM_COMPUTE_NANS_IN_LOGITS
    finally:
        envs.disable_envs_cache()
    assert before != envs.VLLM_COMPUTE_NANS_IN_LOGITS


def test_our_metrics_join_vllms() -> None:
    from prometheus_client import REGISTRY
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    assert get_prometheus_registry() is REGISTRY
