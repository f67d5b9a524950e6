"""Entry point of ``vllm.general_plugins``: make stock vLLM know VoxCPM.

Everything is registered by name, so that loading the plugin imports neither torch
nor our networks. vLLM calls :func:`register` once in every process.
"""

ARCHITECTURE = "VoxCPM2ForSpeech"
# `architecture` in config.json -> the name under which vLLM knows the model.
ARCHITECTURES = {"voxcpm2": ARCHITECTURE, "voxcpm": "VoxCPMForSpeech"}
MODEL_TYPE = "voxcpm2"


def register() -> None:
    """Register model, configuration parser and configuration defaults (idempotent).

    Source: vLLM 0.32, ``vllm/plugins/__init__.py:load_general_plugins``.
    """
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.transformers_utils.config import get_config_parser, register_config_parser

    from voxnative.engine.engine_config import SpeechEngineConfig
    from voxnative.engine.hf_config import VoxConfigParser

    for name in ARCHITECTURES.values():
        if name not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(name, f"voxnative.engine.model:{name}")
        MODELS_CONFIG_MAP.setdefault(name, SpeechEngineConfig)
    # The published config.json has neither `model_type` nor `architectures`, so the
    # parser of the "hf" format is extended: ours knows `architecture` as upstream writes
    # it and leaves every other model to vLLM's own.
    if not isinstance(get_config_parser("hf"), VoxConfigParser):
        register_config_parser("hf")(VoxConfigParser)
