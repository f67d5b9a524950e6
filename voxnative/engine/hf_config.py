"""What vLLM needs to know of a checkpoint, as a transformers configuration."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from vllm.transformers_utils.config import HFConfigParser

from voxnative.config import VoxConfig
from voxnative.plugin import ARCHITECTURES, MODEL_TYPE


class VoxCPM2HFConfig(PretrainedConfig):
    """Base-LM sizes under the names vLLM reads, and the whole ``config.json`` beside them.

    ``vocab_size`` counts three ids behind the text vocabulary: prompt audio patch,
    generated patch ("continue") and stop.
    """

    model_type = MODEL_TYPE

    def __init__(self, vox: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if vox is not None:
            config = VoxConfig.from_dict(vox)
            lm = config.lm
            kwargs.setdefault("architectures", [ARCHITECTURES[config.family.architecture]])
            kwargs.setdefault("dtype", config.dtype)
            self.hidden_size = lm.hidden_size
            self.intermediate_size = lm.intermediate_size
            self.num_hidden_layers = lm.num_hidden_layers + config.residual_lm.num_hidden_layers
            self.num_attention_heads = lm.num_attention_heads
            self.num_key_value_heads = lm.num_key_value_heads
            self.head_dim = lm.head_dim
            self.vocab_size = config.engine_vocab_size
            self.max_position_embeddings = min(lm.max_position_embeddings, config.max_length)
        self.vox = vox
        super().__init__(**kwargs)

    def vox_config(self) -> VoxConfig:
        """The typed configuration.

        Raises:
            ValueError: this object was built without a checkpoint's ``config.json``.
        """
        if self.vox is None:
            raise ValueError("VoxCPM2HFConfig holds no checkpoint configuration ('vox' is None)")
        return VoxConfig.from_dict(self.vox)


class VoxConfigParser(HFConfigParser):
    """vLLM's "hf" configuration format, extended by VoxCPM's own ``config.json`` form.

    Source: vLLM 0.32, ``vllm/transformers_utils/config.py:register_config_parser``.
    """

    def parse(
        self,
        model: str | Path,
        trust_remote_code: bool,
        revision: str | None = None,
        code_revision: str | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], PretrainedConfig]:
        """Return the raw and the parsed configuration of ``model`` (directory or hub id)."""
        raw, _ = PretrainedConfig.get_config_dict(model, revision=revision)
        if raw.get("architecture") not in ARCHITECTURES:
            return super().parse(model, trust_remote_code, revision, code_revision, **kwargs)
        raw = {key: value for key, value in raw.items() if not key.startswith("_")}
        return raw, VoxCPM2HFConfig(vox=raw, name_or_path=str(model))
