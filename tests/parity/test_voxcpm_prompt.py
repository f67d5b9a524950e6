"""VoxCPM-0.5B and VoxCPM1.5: their two layouts equal the reference's, the others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch

from tests.parity.conftest import Pair
from tests.parity.test_plain_loop import recording
from tests.parity.test_prompt import MAX_STEPS, PROMPT_TEXT, TEXT, ReferenceInputs
from voxnative.errors import ParameterError
from voxnative.prompt import build_prompt, default_max_steps
from voxnative.tokenizer import TextTokenizer

pytestmark = pytest.mark.parametrize("pair", ["voxcpm-0.5b", "voxcpm-1.5"], indirect=True)


@pytest.mark.parametrize("mode", ["zero_shot", "continuation"])
def test_layouts_equal_the_reference_s(
    pair: Pair, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(text, text_mask, feat, feat_mask, *, max_len, **_options) -> None:
        raise ReferenceInputs(text[0], text_mask[0], feat[0], feat_mask[0], max_len)

    monkeypatch.setattr(pair.theirs, "_inference", stop)
    config = pair.config
    ours: dict[str, Any] = {}
    theirs: dict[str, str] = {}
    if mode == "continuation":
        # Not whole patches: the padding goes in front.
        samples = recording(config.vae.sample_rate_hz, 0.021, 150)
        assert len(samples) % config.patch_samples_in
        path = tmp_path / "prompt.wav"
        sf.write(path, samples, config.vae.sample_rate_hz, subtype="FLOAT")
        ours = {"prompt": samples, "prompt_text": PROMPT_TEXT}
        theirs = {"prompt_wav_path": str(path), "prompt_text": PROMPT_TEXT}
    with pytest.raises(ReferenceInputs) as caught:
        pair.theirs.generate(TEXT, max_len=MAX_STEPS, **theirs)
    expected = caught.value

    tokenizer = TextTokenizer.from_dir(pair.directory)
    prompt = build_prompt(TEXT, config=config, tokenizer=tokenizer, **ours)

    ids = torch.tensor(prompt.token_ids)
    is_audio = ids == config.audio_patch_id
    assert is_audio.int().tolist() == expected.audio_mask.tolist()
    assert (~is_audio).int().tolist() == expected.text_mask.tolist()
    assert ids.masked_fill(is_audio, 0).tolist() == expected.token_ids.tolist()
    assert default_max_steps(prompt.n_target_tokens, MAX_STEPS) == expected.max_len
    for span in prompt.spans:
        frames = pair.ours.audio_vae.encode(torch.from_numpy(span.samples)[None])
        patches = frames.view(span.n_patches, config.patch_size, config.feat_dim)
        where = slice(span.offset, span.offset + span.n_patches)
        torch.testing.assert_close(patches, expected.patches[where], rtol=0, atol=2e-5)
    assert len(prompt.spans) == len(ours) // 2


@pytest.mark.parametrize("field", ["reference", "description"])
def test_what_the_family_has_no_mode_for_is_refused(pair: Pair, field: str) -> None:
    given: dict[str, Any] = {
        "reference": np.ones(400, np.float32) if field == "reference" else None,
        "description": "a calm voice" if field == "description" else None,
    }
    tokenizer = TextTokenizer.from_dir(pair.directory)
    with pytest.raises(ParameterError) as caught:
        build_prompt(TEXT, config=pair.config, tokenizer=tokenizer, **given)
    assert caught.value.field == field
    assert "voxcpm has the modes zero_shot, continuation" in str(caught.value)
