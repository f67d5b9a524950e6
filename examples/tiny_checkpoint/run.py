"""Command line of the recipe: `python run.py STEP [STEP ...] --config full.toml --work DIR`.

Steps, in order: corpus, teach, train_vae, train_tts, export, speak, evaluate. Each resumes where
it was cut and does nothing where its result exists. `warm_start` begins a training with the weights
of a checkpoint (`--out`). `overlap` runs teach, train_vae and
train_tts side by side on one machine, each waiting for what it needs; `probe` says how good the
VAE is while it still learns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from settings import Settings, load_settings

STEPS = ("corpus", "teach", "train_vae", "train_tts", "export", "speak", "evaluate")
BESIDE = ("overlap", "probe", "warm_start")


def parse_overrides(pairs: list[str]) -> dict[str, dict]:
    """Turn `table.key=value` (value in TOML) into nested dictionaries."""
    tables: dict[str, dict] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        table, _, key = name.partition(".")
        if not (table and key and value):
            raise ValueError(f"--set {pair!r}: expected table.key=value")
        tables.setdefault(table, {})[key] = tomllib.loads(f"v = {value}")["v"]
    return tables


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("steps", nargs="+", choices=STEPS + BESIDE, metavar="STEP", help=", ".join(STEPS + BESIDE))
    add("--config", type=Path, required=True, help="TOML file (full.toml, ci.toml)")
    add("--work", type=Path, required=True, help="folder for everything the recipe writes")
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="override one value",
    )
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--deadline-s", type=float, default=0, help="save and stop a training after so many seconds"
    )
    limit.add_argument(
        "--finish-s",
        type=float,
        default=0,
        help="shorten the trainings so that they are done after so many seconds",
    )
    add(
        "--engine",
        choices=("voxnative", "reference"),
        default="voxnative",
        help="what the checkpoint speaks through",
    )
    add(
        "--out",
        type=Path,
        help="checkpoint folder (default: WORK/checkpoint): what warm_start begins with, export "
        "writes and the later steps speak with",
    )
    return parser


def run_step(name: str, settings: Settings, args: argparse.Namespace, started: float) -> dict:
    """Run one step with the options it takes; time limits count from `started` (monotonic)."""
    options = {}
    if name in ("train_vae", "train_tts", "overlap"):
        options["stop_at"] = started + (args.deadline_s or args.finish_s or 1e9)
        options["finish"] = args.finish_s > 0
    if name in ("export", "speak", "evaluate", "warm_start"):
        options["checkpoint"] = args.out or args.work / "checkpoint"
    if name in ("speak", "evaluate"):
        options["engine"] = args.engine
    if name == "overlap":
        options["config"], options["overrides"] = args.config, args.overrides
    return importlib.import_module(name).run(settings, args.work, **options)


def main(argv: list[str] | None = None) -> None:
    """Run the steps and print each one's summary as JSON."""
    started = time.monotonic()
    args = make_parser().parse_args(argv)
    settings = load_settings(args.config, parse_overrides(args.overrides))
    for name in args.steps:
        print(json.dumps({name: run_step(name, settings, args, started)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
