"""``voxnative bench serve|offline|profile --matrix FILE [--row NAME] [--out DIR]``, ``score DIR``.

Exit codes: 0 all limits kept, 3 a limit missed or a request failed, 2 bad input, 1 the engine
failed. Progress goes to standard error, the verdicts and the report's files to standard output.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from voxnative.bench.baseline import runs_on
from voxnative.bench.errors import BenchError
from voxnative.bench.machine import machine_facts, machine_name
from voxnative.bench.matrix import Row, choose_rows, read_matrix
from voxnative.errors import EngineError, VoxNativeError

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_MISSED = 1, 2, 3
DEFAULT_OUT = Path("out/bench")


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; returns the exit code."""
    args = _parser().parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        return args.run(args)
    except EngineError as error:
        sys.stderr.write(f"voxnative bench: {error}\n")
        return EXIT_FAILED
    except VoxNativeError as error:
        sys.stderr.write(f"voxnative bench: {error}\n")
        return EXIT_BAD_INPUT


def measure(args: argparse.Namespace) -> int:
    """Run rows, over HTTP or in this process, and write the report."""
    from voxnative.bench.machine_rates import measured_elsewhere
    from voxnative.bench.report import append_to, make_report, write_json, write_report
    from voxnative.bench.run_point import is_good
    from voxnative.bench.runner import OURS, Runner, RunOptions

    rows = _rows(args)
    args.out.mkdir(parents=True, exist_ok=True)
    options = RunOptions(
        mode=args.mode,
        matrix=args.matrix,
        machine=args.hardware or machine_name(),
        out=args.out,
        base_url=args.base_url,
        api_key=os.environ.get("VLLM_API_KEY") if args.base_url else None,
        dataset=args.dataset,
        quality=args.quality,
        n_quality=args.quality_items,
        only=(OURS,) if args.no_peers else tuple(args.only),
    )
    report = make_report(args.mode, args.matrix, machine_facts(), args.quality != "none")

    def as_it_stands() -> dict[str, Any]:
        grown = report | runner.found()
        return append_to(grown, args.out) if args.append else grown

    runner = Runner(options, rows, on_row=lambda: write_json(as_it_stands(), args.out))
    if args.append:
        append_to(report, args.out)  # what does not fit is found before anything runs
    else:
        report["rates"] = measured_elsewhere()
    try:
        with _ended_by_sigterm():
            runner.run()
    finally:  # what was measured before an error is a report too
        found = runner.entries or runner.not_run
        files = write_report(as_it_stands(), args.out) if found else []
    for what in runner.not_run:
        sys.stdout.write(f"not run: {what['target']} on {what['row']}: {what['why']}\n")
    _tell(runner.entries, files)
    return 0 if all(is_good(entry) for entry in runner.entries) else EXIT_MISSED


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, as a job's time limit sends it, ends the block as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def score(args: argparse.Namespace) -> int:
    """Score the answers that a run kept, and write its report anew."""
    from voxnative.bench.report import write_report
    from voxnative.bench.run_point import is_good
    from voxnative.bench.score import score_report

    report = score_report(args.report)
    _tell(report["entries"], write_report(report, args.report))
    return 0 if all(is_good(entry) for entry in report["entries"]) else EXIT_MISSED


def profile(args: argparse.Namespace) -> int:
    """One decode step by part, for the first row that is chosen."""
    from voxnative.bench.profile import profile_row

    rows = _rows(args)
    args.out.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(profile_row(rows[0], args.matrix, args.out, args.batch))
    return 0


def _rows(args: argparse.Namespace) -> list[Row]:
    machine = args.hardware or machine_name()
    chosen = choose_rows(read_matrix(args.matrix), args.row)
    fitting = [
        row for row in chosen if not row.hardware or any(runs_on(h, machine) for h in row.hardware)
    ]
    for row in chosen:
        if row not in fitting:
            sys.stderr.write(f"left out, for {' or '.join(row.hardware)}: {row.name}\n")
    if not fitting:
        raise BenchError(f"no row is left for this machine ({machine}); --hardware NAME is another")
    if args.model is None:
        return fitting
    return [replace(row, server=replace(row.server, model=args.model)) for row in fitting]


def _tell(entries: list[dict[str, Any]], files: list[Path]) -> None:
    for entry in entries:
        result = entry["result"]
        head = f"{entry['row']} {entry['point']['label']} {entry['target']}: "
        if result["completed"]:
            head += (
                f"TTFA {result['median_audio_ttfp_ms']:.0f} ms,"
                f" RTF {result['median_audio_rtf']:.3f},"
                f" {result['audio_throughput']:.2f} s of audio a second"
            )
        sys.stdout.write(f"{head}\n")
        for verdict in entry.get("verdicts", ()):
            sys.stdout.write(f"  {'kept' if verdict['ok'] else 'MISSED'}: {verdict['text']}\n")
        if result["failed"]:
            sys.stdout.write(f"  FAILED: {result['failed']} requests; {entry['errors'][0]}\n")
    sys.stdout.write("".join(f"{path}\n" for path in files))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage block."""
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="voxnative bench", description="Measure speed and quality of speech.")
    commands = parser.add_subparsers(
        title="what", required=True, metavar="serve | offline | profile | score"
    )
    shared = _Parser(add_help=False)
    add = shared.add_argument
    add("--matrix", type=Path, required=True, help="the rows, as JSON")
    add("--row", action="append", default=[], help="name or pattern; again for more")
    add("--out", type=Path, default=DEFAULT_OUT, help=f"folder of the report ({DEFAULT_OUT})")
    add(
        "--model",
        help="serve this checkpoint, a directory or a Hugging Face id, instead of the rows'",
    )
    add("--hardware", help="take this machine for NAME when rows and limits are chosen")

    load = _Parser(add_help=False)
    add = load.add_argument
    add("--dataset", type=Path, metavar="DIR", help="use this instead of every row's dataset_path")
    quality = load.add_mutually_exclusive_group()
    for flag, value, text in (
        ("--no-quality", "none", "report speed without quality"),
        ("--score-later", "later", "keep the speech in --out; `voxnative bench score` scores it"),
    ):
        quality.add_argument(flag, action="store_const", dest="quality", const=value, help=text)
    load.set_defaults(quality="now")
    add("--quality-items", type=int, default=16, metavar="N", help="answers a step to score (16)")
    add("--no-peers", action="store_true", help="leave the rows' peers out")
    add("--only", action="append", default=[], metavar="TARGET", help="voxnative or a peer's name")
    add("--append", action="store_true", help="add to the report that is in --out")

    for mode, text in (
        ("serve", "over HTTP, on a server that it starts or that runs"),
        ("offline", "in this process, without a server"),
    ):
        command = commands.add_parser(mode, parents=[shared, load], help=text, description=text)
        command.set_defaults(run=measure, mode=mode, base_url=None)
        if mode == "serve":
            command.add_argument(
                "--base-url", help="of a server that runs already; VLLM_API_KEY is sent to it"
            )
    text = "one decode step by part: time, bytes, FLOPs, and the machine's own rates"
    command = commands.add_parser("profile", parents=[shared], help=text, description=text)
    command.set_defaults(run=profile)
    command.add_argument("--batch", type=int, nargs="+", default=[1], help="requests at once (1)")
    text = "the quality of a report made with --score-later, on any machine"
    command = commands.add_parser("score", help=text, description=text)
    command.set_defaults(run=score)
    command.add_argument("report", type=Path, metavar="DIR", help="folder of the report")
    return parser
