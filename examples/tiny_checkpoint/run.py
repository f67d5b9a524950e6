"""Command line of the recipe: `python run.py STEP --config full.toml --work DIR`.

Steps, in order: corpus, teach, train_vae, train_tts, export, evaluate. Each resumes where it
was cut and does nothing where its result exists. `overlap` runs teach, train_vae and
train_tts side by side on one machine, each waiting for what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from settings import load_settings

STEPS = ("corpus", "teach", "train_vae", "train_tts", "export", "evaluate", "overlap")


def parse_overrides(pairs: list[str]) -> dict[str, dict]:
    """Turn `table.key=value` (value in TOML) into nested dictionaries."""
    import tomllib

    tables: dict[str, dict] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        table, _, key = name.partition(".")
        if not (table and key and value):
            raise ValueError(f"--set {pair!r}: expected table.key=value")
        tables.setdefault(table, {})[key] = tomllib.loads(f"v = {value}")["v"]
    return tables


def main(argv: list[str] | None = None) -> dict:
    """Run one step and return (and print) its summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--config", type=Path, required=True, help="TOML file (full.toml, ci.toml)")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for everything the recipe writes"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="override one value",
    )
    parser.add_argument(
        "--deadline-s",
        type=float,
        default=0,
        help="save and stop a training after this many seconds (0: when done)",
    )
    parser.add_argument(
        "--engine",
        choices=("voxnative", "reference"),
        default="voxnative",
        help="what `evaluate` speaks through",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="checkpoint folder of export and evaluate (default: WORK/checkpoint)",
    )
    args = parser.parse_args(argv)
    settings = load_settings(args.config, parse_overrides(args.overrides))
    step = importlib.import_module(args.step)
    options = {}
    if args.step in ("train_vae", "train_tts", "overlap"):
        options["stop_at"] = time.monotonic() + (args.deadline_s or 1e9)
    if args.step in ("export", "evaluate"):
        options["checkpoint"] = args.out or args.work / "checkpoint"
    if args.step == "evaluate":
        options["engine"] = args.engine
    if args.step == "overlap":
        options["config"], options["overrides"] = args.config, args.overrides
    summary = step.run(settings, args.work, **options)
    print(json.dumps({args.step: summary}, indent=1))
    return summary


if __name__ == "__main__":
    main()
