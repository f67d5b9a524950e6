"""The four layouts equal the reference's: ids, masks, patches and the length cap.

The reference builds its inputs in `_generate` and hands them to `_inference`; the tests stop it
there and compare what it was about to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch

from tests.reference import load_reference
from voxnative.config import VoxConfig
from voxnative.prompt import build_prompt, default_max_steps
from voxnative.tokenizer import TextTokenizer

TEXT, PROMPT_TEXT = "hello world.", "and so it goes, "
MAX_STEPS = 50


@dataclass
class ReferenceInputs(BaseException):
    """What the reference was about to run; raised to end its call there."""

    token_ids: torch.Tensor  # [T], 0 at audio positions
    text_mask: torch.Tensor  # [T]
    patches: torch.Tensor  # [T, P, D], 0 at text positions
    audio_mask: torch.Tensor  # [T]
    max_len: int


@pytest.fixture
def reference_inputs(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = load_reference(tiny_dir)

    def stop(text, text_mask, feat, feat_mask, *, max_len, **_options) -> None:
        raise ReferenceInputs(text[0], text_mask[0], feat[0], feat_mask[0], max_len)

    monkeypatch.setattr(model, "_inference", stop)

    def build(text: str, **recordings: np.ndarray | str) -> ReferenceInputs:
        options: dict[str, str] = {}
        for name, value in recordings.items():
            if isinstance(value, np.ndarray):
                options[f"{name}_wav_path"] = str(tmp_path / f"{name}.wav")
                sf.write(options[f"{name}_wav_path"], value, 16_000, subtype="FLOAT")
            else:
                options[name] = value
        with pytest.raises(ReferenceInputs) as caught:
            model.generate(text, max_len=MAX_STEPS, **options)
        return caught.value

    return build


@pytest.mark.parametrize(
    "roles",
    [(), ("reference",), ("prompt",), ("reference", "prompt")],
    ids=["zero_shot", "reference", "continuation", "reference_continuation"],
)
@pytest.mark.parametrize("n_extra", [0, 777], ids=["whole patches", "padded"])
def test_layouts_equal_the_reference_s(
    roles: tuple[str, ...],
    n_extra: int,
    reference_inputs,
    tiny_dir: Path,
    tiny_config: VoxConfig,
    tiny_tokenizer: TextTokenizer,
    voice_16k: np.ndarray,
) -> None:
    n_patch = tiny_config.patch_samples_in
    recordings: dict[str, np.ndarray | str] = {}
    if "reference" in roles:
        recordings["reference"] = voice_16k[: 3 * n_patch + n_extra]
    if "prompt" in roles:
        recordings["prompt"] = voice_16k[n_extra : 5 * n_patch + 2 * n_extra]
        recordings["prompt_text"] = PROMPT_TEXT
    expected = reference_inputs(TEXT, **recordings)

    prompt = build_prompt(TEXT, config=tiny_config, tokenizer=tiny_tokenizer, **recordings)

    ids = torch.tensor(prompt.token_ids)
    is_audio = ids == tiny_config.audio_patch_id
    assert is_audio.int().tolist() == expected.audio_mask.tolist()
    assert (~is_audio).int().tolist() == expected.text_mask.tolist()
    assert ids.masked_fill(is_audio, 0).tolist() == expected.token_ids.tolist()
    vae = load_reference(tiny_dir).audio_vae
    for span in prompt.spans:
        where = slice(span.offset, span.offset + span.n_patches)
        with torch.inference_mode():
            frames = vae.encode(torch.from_numpy(span.samples)[None], 16_000)[0].T  # [n, D]
        patches = frames.reshape(span.n_patches, tiny_config.patch_size, tiny_config.feat_dim)
        torch.testing.assert_close(patches, expected.patches[where], rtol=0, atol=0)
    assert sum(span.n_patches for span in prompt.spans) == int(expected.audio_mask.sum())
    assert default_max_steps(prompt.n_target_tokens, MAX_STEPS) == expected.max_len


def test_the_length_cap_follows_the_target_text_alone(
    reference_inputs, tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer, voice_16k: np.ndarray
) -> None:
    expected = reference_inputs("hi.", prompt=voice_16k, prompt_text=PROMPT_TEXT)
    prompt = build_prompt(
        "hi.",
        config=tiny_config,
        tokenizer=tiny_tokenizer,
        prompt=voice_16k,
        prompt_text=PROMPT_TEXT,
    )
    assert expected.max_len < MAX_STEPS  # the text's own cap is at work
    assert default_max_steps(prompt.n_target_tokens, MAX_STEPS) == expected.max_len
