"""The whole generation loop without vLLM: our networks and decode step, and plain language models.

For parity where no engine is at hand: with it, a difference from the reference is a difference of
the networks or of the loop, and not of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxnative.checkpoint import load_module_strict
from voxnative.checkpoint_shapes import iter_tensors
from voxnative.config import VoxConfig
from voxnative.config_lm import LMConfig
from voxnative.decode_step import decode_step, prime_continuation
from voxnative.nn.blocks import TransformerStack
from voxnative.nn.heads import ScalarQuantizer, StopHead
from voxnative.nn.rope import apply_rope, rope_tables
from voxnative.nn.speech_nets import SpeechNets
from voxnative.prompt import Tokenizer, build_prompt
from voxnative.request_state import RequestStates, StepParams
from voxnative.tokenizer import TextTokenizer

N_POSITIONS = 512


@dataclass(frozen=True)
class PlainResult:
    """What the loop made.

    Attributes:
        latents: [n, P, D].
        stop_flags: [n] bool, the stop head's choice at each step; the loop doesn't heed it.
        audio: [n * patch samples], the deltas of all steps.
    """

    latents: Tensor
    stop_flags: Tensor
    audio: Tensor


@dataclass
class _Cache:
    """Keys and values of one sequence, a pair [T, kv_heads, head_dim] a layer."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    n: int = 0


class CausalLM(TransformerStack):
    """The stack of a language model over one sequence, with a cache."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__(config, N_POSITIONS)
        self.config = config
        if config.vocab_size:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def advance(self, x: Tensor, cache: _Cache) -> Tensor:
        """The next positions of the sequence, [n, H] -> [n, H]."""
        n, head_dim = len(x), self.config.head_dim
        span = slice(cache.n, cache.n + n)
        mask = torch.ones(n, cache.n + n, dtype=torch.bool).tril(cache.n)
        for i, layer in enumerate(self.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            q, k, v = (
                project(normed).view(n, -1, head_dim)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            if self.cos is not None and self.sin is not None:
                rope = self.cos[span], self.sin[span]
                q, k = apply_rope(q, *rope), apply_rope(k, *rope)
            if cache.n:
                k, v = (torch.cat(pair) for pair in zip(cache.layers[i], (k, v), strict=True))
            cache.layers[i : i + 1] = [(k, v)]
            mixed = F.scaled_dot_product_attention(
                *(heads.transpose(0, 1).unsqueeze(0) for heads in (q, k, v)),
                attn_mask=mask,
                enable_gqa=True,
            )[0]  # [heads, n, head_dim]
            attended = attention.o_proj(mixed.transpose(0, 1).reshape(n, -1))
            x = x + layer.branch_scale * attended
            x = x + layer.branch_scale * layer.mlp(layer.post_attention_layernorm(x))
        cache.n += n
        return self.norm(x)


class PlainSpeech(SpeechNets):
    """All networks of a checkpoint in one module, and the loop over them."""

    def __init__(self, config: VoxConfig) -> None:
        super().__init__(config)
        hidden = config.lm.hidden_size
        self.config = config
        self.base_lm = CausalLM(config.lm)
        self.residual_lm = CausalLM(config.residual_lm)
        self.fsq_layer = ScalarQuantizer(hidden, config.fsq_latent_dim, config.fsq_scale)
        self.stop = StopHead(hidden)
        if config.family.projects_fusion:
            self.fusion_concat_proj = nn.Linear(2 * hidden, hidden)
        self.tokenizer: Tokenizer

    @classmethod
    def from_dir(cls, directory: Path) -> PlainSpeech:
        """The networks of a checkpoint directory, every tensor accounted for."""
        speech = cls(VoxConfig.from_dir(directory))
        speech.tokenizer = TextTokenizer.from_dir(directory)
        tensors = ((_name(name), tensor, file) for name, tensor, file in iter_tensors(directory))
        load_module_strict(speech, tensors)
        return speech.requires_grad_(False)

    @classmethod
    def from_tensors(
        cls, config: VoxConfig, tokenizer: Tokenizer, tensors: Mapping[str, Tensor]
    ) -> PlainSpeech:
        """Networks that share the memory of given tensors, named as in a checkpoint."""
        with torch.device("meta"):
            speech = cls(config)
        speech.tokenizer = tokenizer
        named = {_name(name): tensor for name, tensor in tensors.items()}
        speech.load_state_dict(named, assign=True)
        stacks = (
            (speech.base_lm, config.lm),
            (speech.residual_lm, config.residual_lm),
            (speech.feat_encoder.encoder, config.encoder),
            (speech.feat_decoder.estimator.decoder, config.dit),
        )
        for stack, sizes in stacks:  # tables are no part of a checkpoint
            if stack.cos is not None:
                stack.cos, stack.sin = rope_tables(sizes, len(stack.cos))
        return speech.requires_grad_(False)

    def generate(
        self,
        text: str,
        *,
        n_steps: int,
        seed: int,
        cfg: float,
        timesteps: int,
        **recordings: np.ndarray | str | None,
    ) -> PlainResult:
        """Exactly `n_steps` patches; `recordings` as `build_prompt` takes them."""
        config = self.config
        prompt = build_prompt(text, config=config, tokenizer=self.tokenizer, **recordings)  # type: ignore[arg-type]
        states = RequestStates(
            config, self.audio_vae, 1, n_steps, torch.float32, torch.device("cpu")
        )
        slot = states.add("request", StepParams(seed, cfg, timesteps, 1.0, n_steps))
        ids = torch.tensor(prompt.token_ids)
        is_audio = (ids == config.audio_patch_id).unsqueeze(-1)
        embeds = self.base_lm.embed_tokens(ids.masked_fill(is_audio[:, 0], 0))
        embeds = embeds * config.lm.embedding_scale
        for span in prompt.spans:
            frames = self.audio_vae.encode(torch.from_numpy(span.samples)[None])
            patches = frames.view(span.n_patches, config.patch_size, config.feat_dim)
            embeds[span.offset : span.offset + span.n_patches] = self.embed_patches(patches)
            if span.role == "prompt":
                context = patches[-config.family.n_context_patches :]
                prime_continuation(self, states, slot, context)

        caches = _Cache(), _Cache()
        latents, stop_flags, waves = [], [], []
        for _ in range(n_steps):
            hidden, residual = self._language_models(embeds, is_audio, caches)
            waves.append(decode_step(self, states, [slot], hidden, residual)[0])
            latents.append(states.previous_patch[slot].clone())
            stop_flags.append(self.stop(hidden[0]).argmax() == 1)
            embeds, is_audio = states.history[slot][-1][None], torch.ones(1, 1, dtype=torch.bool)
        return PlainResult(torch.stack(latents), torch.stack(stop_flags), torch.cat(waves))

    def _language_models(
        self, embeds: Tensor, is_audio: Tensor, caches: tuple[_Cache, _Cache]
    ) -> tuple[Tensor, Tensor]:
        """Embeddings [n, H], audio positions [n, 1] -> hidden and residual of the last, [1, H]."""
        hidden = self.base_lm.advance(embeds, caches[0])
        hidden = torch.where(is_audio, self.fsq_layer(hidden), hidden)
        heard = torch.where(is_audio, embeds, torch.zeros_like(embeds))
        if self.config.family.projects_fusion:
            fused = self.fusion_concat_proj(torch.cat((hidden, heard), dim=-1))
        else:
            fused = hidden + heard
        return hidden[-1:], self.residual_lm.advance(fused, caches[1])[-1:]


def _name(tensor: str) -> str:
    return f"stop.{tensor}" if tensor.startswith("stop_") else tensor
