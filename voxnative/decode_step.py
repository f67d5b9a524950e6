"""The data path of one decode step, plain torch: hidden -> CFM -> re-embed -> VAE -> chunk.

The language models run before it, in vLLM (``voxnative.engine.model``):

    text -> ids -> base LM -> FSQ -> residual LM -> (hidden, residual)      engine/model.py
    (hidden, residual) -> stop logits -> vLLM's sampler                     engine/model.py
    (hidden, residual) -> mu -> CFM over the local DiT -> patch             here
    patch -> local encoder -> the LM's next input embedding                 here
    patch -> AudioVAE decoder with carried state -> new samples             here

Source: voxcpm/model/voxcpm2.py, ``VoxCPM2Model._inference``.
"""

import torch
from einops import rearrange

from voxnative.nn.cfm import solve, sway_grid
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import decode_chunk
from voxnative.request_state import RequestStates


def decode_step(
    nets: SpeechNets,
    states: RequestStates,
    slots: list[int],
    hidden: torch.Tensor,
    residual: torch.Tensor,
) -> torch.Tensor:
    """Make one patch for each request and advance its state.

    Args:
        nets: the networks behind the language models.
        states: the container; rows ``slots`` are read and written, no other.
        slots: one slot a row of ``hidden``, without repetition.
        hidden: ``[B, H]`` base LM hidden states (quantised at audio positions).
        residual: ``[B, H]`` residual LM hidden states.

    Returns:
        ``[B, patch_samples_out]`` float32: the new samples of each request, and no others.
    """
    rows = torch.tensor(slots, device=hidden.device)  # [B]
    with nets.adapter_rows.using(states.adapter_rows(slots)):
        patches = solve_patches(nets, states, slots, rows, hidden, residual)  # [B, P, D]
        embeds = nets.embed_patches(patches)  # [B, H]
    tails = [tail[rows] for tail in states.vae_tails]
    waves, tails = decode_chunk(nets.audio_vae, patches.float(), tails)  # [B, n_samples]
    for state, tail in zip(states.vae_tails, tails, strict=True):
        state[rows] = tail
    states.previous_patch[rows] = patches
    states.step[rows] += 1
    for row, slot in enumerate(slots):
        states.history[slot].append(embeds[row].clone())
    return waves


def solve_patches(
    nets: SpeechNets,
    states: RequestStates,
    slots: list[int],
    rows: torch.Tensor,
    hidden: torch.Tensor,
    residual: torch.Tensor,
) -> torch.Tensor:
    """CFM for all rows, one solve for each number of timesteps in the batch; ``[B, P, D]``."""
    mu = nets.dit_condition(hidden, residual)  # [B, 2 * H_dit]
    noise = states.noise[rows, states.step[rows].clamp(max=states.max_steps - 1)]  # [B, P, D]
    condition = states.previous_patch[rows]  # [B, P, D]
    cfg = states.cfg[rows]  # [B]
    patches = torch.empty_like(noise)
    groups: dict[int, list[int]] = {}
    for row, slot in enumerate(slots):
        groups.setdefault(states.timesteps[slot], []).append(row)
    for n_timesteps, members in groups.items():
        group = torch.tensor(members, device=rows.device)
        grid = sway_grid(n_timesteps, device=noise.device, dtype=noise.dtype)
        with nets.adapter_rows.pairs_of(group):
            patches[group] = solve(
                nets.feat_decoder.estimator,
                noise[group],
                grid,
                mu=mu[group],
                cond=condition[group],
                cfg=cfg[group],
                mean_mode=states.config.dit_mean_mode,
            )
    return patches


def prime_continuation(
    nets: SpeechNets, states: RequestStates, slot: int, context: torch.Tensor
) -> None:
    """Start a request behind the end of its prompt audio instead of behind silence.

    The last prompt patch becomes the first condition, and the VAE decoder runs over the
    context (its samples are dropped), so that the first new sample continues the prompt.

    Args:
        nets: the networks.
        states: the container.
        slot: a slot that has made no step yet.
        context: ``[n, P, D]`` last patches of the prompt, n >= 1.

    Source: voxcpm/model/voxcpm2.py, ``_inference`` (``streaming_prefix_len``).
    """
    states.previous_patch[slot] = context[-1]
    tails = [tail[slot : slot + 1] for tail in states.vae_tails]
    frames = rearrange(context.float(), "n p d -> 1 (n p) d")
    _, tails = decode_chunk(nets.audio_vae, frames, tails)
    for state, tail in zip(states.vae_tails, tails, strict=True):
        state[slot] = tail[0]
