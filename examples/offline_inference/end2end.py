"""Every way to speak with VoxNative, one function each, written to a folder.

python examples/offline_inference/end2end.py text
python examples/offline_inference/end2end.py reference --recording voice.wav
python examples/offline_inference/end2end.py prompt --recording voice.wav --said "what it says"
python examples/offline_inference/end2end.py batch
python examples/offline_inference/end2end.py stream
python examples/offline_inference/end2end.py long --file chapter.txt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import soundfile as sf

from voxnative import SpeechResult, VoxNative

TEXT = "The evening train was late, so we walked along the river."
BATCH = ["Good morning.", "How are you today?", "Please close the door behind you."]


def speak_text(speech: VoxNative, args: argparse.Namespace) -> None:
    """Text alone: the checkpoint's own voice."""
    save(speech.synthesize(args.text, seed=args.seed), args.out / "text.wav")


def speak_reference(speech: VoxNative, args: argparse.Namespace) -> None:
    """Text in the voice of a recording."""
    result = speech.synthesize(args.text, reference=args.recording, seed=args.seed)
    save(result, args.out / "reference.wav")


def speak_prompt(speech: VoxNative, args: argparse.Namespace) -> None:
    """Text as the continuation of a recording whose words are known."""
    result = speech.synthesize(
        args.text, prompt=args.recording, prompt_text=args.said, seed=args.seed
    )
    save(result, args.out / "prompt.wav")


def speak_batch(speech: VoxNative, args: argparse.Namespace) -> None:
    """Several texts at once; they share the engine's steps."""
    for index, result in enumerate(speech.synthesize_batch(BATCH, seed=args.seed)):
        save(result, args.out / f"batch_{index}.wav")


def speak_stream(speech: VoxNative, args: argparse.Namespace) -> None:
    """One text, written as it is made: each chunk holds only its own new samples."""
    path = args.out / "stream.wav"
    with sf.SoundFile(path, "w", speech.sample_rate_hz, channels=1) as file:
        for chunk in speech.stream(args.text, seed=args.seed):
            file.write(chunk.samples)
            print(f"chunk {chunk.index}: {len(chunk.samples)} samples")
    print(path)


def speak_long(speech: VoxNative, args: argparse.Namespace) -> None:
    """A text of any length, piece by piece into a file; memory stays flat."""
    text = args.file.read_text() if args.file else " ".join(BATCH * 4)
    path = args.out / "long.wav"
    with sf.SoundFile(path, "w", speech.sample_rate_hz, channels=1) as file:
        for chunk in speech.stream_long(text, seed=args.seed):
            file.write(chunk.samples)
    print(path)


def save(result: SpeechResult, path: Path) -> None:
    result.save(path)
    print(
        f"{path}: {result.duration_s:.2f} s ({result.finish_reason}), "
        f"first audio after {result.ttfa_s:.2f} s, RTF {result.rtf:.2f}"
    )


WAYS = {
    "text": speak_text,
    "reference": speak_reference,
    "prompt": speak_prompt,
    "batch": speak_batch,
    "stream": speak_stream,
    "long": speak_long,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Speak with VoxNative.")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--model", help="checkpoint directory or Hugging Face id")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--recording", help="for reference and prompt")
    parser.add_argument("--said", help="the words of the recording, for prompt")
    parser.add_argument("--file", type=Path, help="a text file, for long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default: out)")
    args = parser.parse_args()
    if args.way in ("reference", "prompt") and args.recording is None:
        parser.error(f"{args.way} needs --recording")
    args.out.mkdir(parents=True, exist_ok=True)
    with VoxNative(args.model) as speech:
        WAYS[args.way](speech, args)


if __name__ == "__main__":  # the engine's process imports this file again
    main()
