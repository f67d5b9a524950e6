"""The command line: `voxnative say TEXT`, `info MODEL`, `serve MODEL`, `demo MODEL` and `bench`.

Standard output carries the result alone (the closing line, or the WAV itself with `-o -`);
progress, errors and everything that libraries print go to standard error. Exit codes: 0 done,
2 bad input (one line says what is valid), 1 the engine failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import voxnative
from voxnative.errors import EngineError, ParameterError, PieceError, TextError, VoxNativeError
from voxnative.terminal import Progress, Streams, claimed_streams
from voxnative.units import DEFAULT_TEMPERATURE, DEFAULT_TIMESTEPS, JOINTS, MAX_REFERENCE_S
from voxnative.wav import AudioFile, check_output

if TYPE_CHECKING:
    from voxnative.async_api import AsyncVoxNative
    from voxnative.long_request import LongRequest

STDIO = "-"
COPY_BYTES = 2**20
LOG_LEVEL = "VLLM_LOGGING_LEVEL"
_LORA = "lora"
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["serve"]:  # vLLM's server has its own parser, and its own output
        from voxnative.serving.launcher import main as serve

        return serve(arguments[1:])
    if arguments[:1] == ["demo"]:
        from voxnative.serving.demo import main as demo

        return demo(arguments[1:])
    if arguments[:1] == ["bench"]:
        from voxnative.bench.command import main as bench

        return bench(arguments[1:])
    args = _parser().parse_args(arguments)
    # A user who set vLLM's log level wants to read the log.
    verbose = args.verbose or LOG_LEVEL in os.environ
    with _log_level("INFO" if verbose else "WARNING"), claimed_streams(verbose) as streams:
        try:
            args.run(args, streams)
        except EngineError as error:
            streams.err.write(streams.log_tail())
            return _complain(streams, str(error), EXIT_FAILED)
        except VoxNativeError as error:
            return _complain(streams, str(error), EXIT_BAD_INPUT)
        except BrokenPipeError:
            return _complain(streams, "standard output was closed", EXIT_FAILED)
        except OSError as error:
            return _complain(
                streams, f"a file could not be read or written: {error.strerror}", EXIT_FAILED
            )
        except (KeyboardInterrupt, SystemExit):  # see _interruptible
            return _complain(streams, "interrupted", EXIT_INTERRUPTED)
    return 0


def say(args: argparse.Namespace, streams: Streams) -> None:
    """Speak a text of any length to a file or to standard output."""
    text = _read_text(args.text, args.file)
    if args.output != STDIO:
        check_output(args.output)

    from voxnative.async_api import SHIPPED_CHECKPOINT, AsyncVoxNative
    from voxnative.checkpoint import resolve_checkpoint
    from voxnative.config import VoxConfig
    from voxnative.long_request import plan_long
    from voxnative.lora_file import MAX_LORA_RANK, read_adapter
    from voxnative.speech_request import RequestBuilder
    from voxnative.tokenizer import TextTokenizer

    # Everything the user gave is checked before the engine starts, which takes half a minute.
    directory = resolve_checkpoint(args.model or SHIPPED_CHECKPOINT)
    config = VoxConfig.from_dir(directory)
    context_len = min(config.max_length, config.lm.max_position_embeddings)
    builder = RequestBuilder(config, TextTokenizer.from_dir(directory), context_len)
    options = {name: getattr(args, name) for name in _REQUEST_OPTIONS}
    request = plan_long(builder, text, **options).live_if_short()

    loras = {}
    if args.lora is not None:
        read_adapter(args.lora, config, MAX_LORA_RANK)
        loras[_LORA] = args.lora
    speech = AsyncVoxNative(directory, max_num_seqs=1, max_model_len=context_len, loras=loras)
    with contextlib.ExitStack() as stack:
        path = Path(args.output)
        if args.output == STDIO:  # a header holds a length: the file is sent when it is complete
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "speech.wav")
        file = stack.enter_context(AudioFile(path, speech.sample_rate_hz))
        try:
            with _interruptible():
                summary = asyncio.run(_speak(speech, request, file, streams))
        except PieceError as error:
            if error.index > request.first_piece and args.output != STDIO:
                kept = path.with_name(f"{path.stem}.part{path.suffix}")
                file.complete(kept)
                streams.err.write(
                    f"voxnative: {kept} holds everything before; --first-piece {error.index} "
                    f"--seed {request.seed} goes on\n"
                )
            raise
        path = file.complete()
        if args.output == STDIO:
            with path.open("rb") as complete:
                while block := complete.read(COPY_BYTES):
                    streams.write(block)
            streams.err.write(f"{summary}\n")
        else:
            streams.write(f"{args.output}: {summary}\n".encode())


async def _speak(
    speech: AsyncVoxNative, request: LongRequest, file: AudioFile, streams: Streams
) -> str:
    """Speak a text into a file, showing progress; returns a line about it."""
    progress = Progress(streams.err)
    progress.show("starting the engine ...")
    n_pieces = len(request.pieces)
    async with speech:
        for name in speech.loras.names():  # the one that was given, if any
            request = request.with_lora(speech.loras.get(name))
        started = time.perf_counter()
        run = speech.run_long(request, started)
        n_samples = 0
        async for chunk in run.chunks():
            file.write(chunk.samples)
            n_samples += len(chunk.samples)
            made_s, wall_s = n_samples / chunk.sample_rate_hz, time.perf_counter() - started
            place = f", piece {chunk.piece} of {n_pieces}" if n_pieces > 1 else ""
            progress.show(f"{made_s:.1f} s of speech, RTF {wall_s / made_s:.2f}{place}")
    progress.end()
    if run.finish_reason == "length":
        streams.err.write(f"voxnative: stopped at the length cap of {made_s:.2f} s\n")
    elif run.finish_reason == "silence":
        streams.err.write("voxnative: stopped after a long silence\n")
    pieces = f" in {n_pieces} pieces" if n_pieces > 1 else ""
    return (
        f"{made_s:.2f} s of speech{pieces}, first audio after {run.ttfa_s:.2f} s, "
        f"RTF {wall_s / made_s:.2f}, seed {request.seed}"
    )


def info(args: argparse.Namespace, streams: Streams) -> None:
    """Describe a checkpoint without starting the engine."""
    from voxnative.async_api import SHIPPED_CHECKPOINT
    from voxnative.checkpoint import resolve_checkpoint
    from voxnative.info import describe

    streams.write(describe(resolve_checkpoint(args.model or SHIPPED_CHECKPOINT)).encode())


_REQUEST_OPTIONS = (
    "reference",
    "prompt",
    "prompt_text",
    "description",
    "seed",
    "cfg",
    "timesteps",
    "temperature",
    "max_seconds",
    "max_silence_s",
    "normalize",
    "joint",
    "first_piece",
)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end even a blocking engine start.

    asyncio's own handler would only cancel the task, which is not looked at before the start is
    over, and vLLM swallows a KeyboardInterrupt there (Source: vLLM 0.32,
    `vllm/utils/network_utils.py:zmq_socket_ctx`) and waits for an engine that is gone.
    """
    interrupted = False

    def interrupt(_signal: int, _frame: object) -> NoReturn:
        nonlocal interrupted
        if interrupted:  # the second Ctrl-C does not wait for an orderly end
            os._exit(EXIT_INTERRUPTED)
        interrupted = True
        raise SystemExit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _log_level(level: str) -> Iterator[None]:
    """vLLM's log level for the command alone, where the user chose none."""
    chosen = LOG_LEVEL in os.environ
    os.environ.setdefault(LOG_LEVEL, level)
    try:
        yield
    finally:
        if not chosen:
            del os.environ[LOG_LEVEL]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage block."""
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="voxnative", description="VoxCPM2 text-to-speech on vLLM.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {voxnative.__version__}")
    metavar = "say | info | serve | demo | bench"
    commands = parser.add_subparsers(title="commands", required=True, metavar=metavar)
    model = "checkpoint directory or Hugging Face id (default: the checkpoint that ships)"

    command = commands.add_parser("say", help="speak a text", description=say.__doc__)
    command.set_defaults(run=say)
    add = command.add_argument
    add("text", nargs="?", metavar="TEXT", help="what to speak; - reads standard input")
    add("--file", type=Path, help="read the text from this file")
    add("-o", "--output", default="out.wav", help=".wav or .flac file, or - (default: out.wav)")
    add("--model", help=model)
    add("--seed", type=_number, help="reproduces the audio (default: a fresh one)")
    add("--cfg", type=_number, help="guidance weight (default: the checkpoint's)")
    add(
        "--steps",
        type=_number,
        dest="timesteps",
        help=f"solver steps a patch (default: {DEFAULT_TIMESTEPS})",
    )
    add("--max-seconds", type=_number, help="longest audio (default: what the text can need)")
    add(
        "--temperature",
        type=_number,
        help=f"scale of the noise (default: {DEFAULT_TEMPERATURE:g})",
    )
    add("--reference", help=f"recording of the voice to use, at most {MAX_REFERENCE_S:g} s")
    add("--prompt", help="recording to continue, with --prompt-text")
    add("--prompt-text", help="what is said in --prompt")
    add("--description", help="a voice in words, not with --prompt")
    add("--normalize", action="store_true", help="numbers, dates, signs to words (extra wetext)")
    add("--max-silence", type=_number, dest="max_silence_s", help="ends speech (default: 3 s)")
    add("--joint", help=f"of a long text's pieces: {', '.join(JOINTS)}")
    add("--first-piece", type=_number, default=0, help="of a long text, to go on after an error")
    add("--lora", metavar="DIR", help="LoRA adapter: lora_config.json and lora_weights.safetensors")
    add("-v", "--verbose", action="store_true", help="show the engine's log")

    command = commands.add_parser("info", help="describe a checkpoint", description=info.__doc__)
    command.set_defaults(run=info, verbose=False)
    command.add_argument("model", nargs="?", metavar="MODEL", help=model)

    commands.add_parser("serve", help="serve POST /v1/audio/speech; see voxnative serve --help")
    commands.add_parser("demo", help="a page to try it in a browser; see voxnative demo --help")
    commands.add_parser("bench", help="measure speed and quality; see voxnative bench --help")
    return parser


def _number(text: str) -> int | float | str:
    """A number where it is one; anything else goes on to the check that names the field."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read_text(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise ParameterError("text", text, "either TEXT (- for standard input) or --file")
    if file is None and text != STDIO:
        assert text is not None
        return text
    if file is None and sys.stdin is None:
        raise ParameterError("text", text, "a text on standard input, which is closed")
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise ParameterError("file", file, f"a file that can be read ({error.strerror})") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError("text", data, "text in UTF-8") from error


def _complain(streams: Streams, message: str, exit_code: int) -> int:
    streams.err.write(f"voxnative: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
