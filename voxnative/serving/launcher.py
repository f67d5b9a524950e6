"""``voxnative serve [MODEL] [--deploy FILE] [vLLM's flags]``: vLLM's own server with our routes.

Parsing, application, health, metrics, keys, TLS and shutdown are vLLM's. Added are the settings
that the checkpoint and the machine imply, the deploy file, and the environment that loads the
routes. Flags go before the file, the file before what is implied.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from voxnative.config import VoxConfig
from voxnative.errors import VoxNativeError

EXIT_BAD_INPUT = 2
PLUGIN_NAME = "voxnative"
# Groups whose plugins vLLM loads where VLLM_PLUGINS is not set.
_OPEN_GROUPS = ("general", "io_processor", "platform", "stat_logger")
_DEFAULT_NUM_SEQS = {"cpu": 8, "gpu": 64}
# vLLM's server makes these itself, or we need them otherwise than the library does.
_LEFT_TO_SERVER = ("model", "skip_tokenizer_init", "disable_log_stats")
_USAGE = "voxnative serve [MODEL] [--deploy FILE] [options of vllm serve]"
_DESCRIPTION = """Serve POST /v1/audio/speech. MODEL is a checkpoint directory or a Hugging Face id
and comes first (default: the checkpoint that ships). FILE holds vLLM's options for one class of
machines and a `voxnative:` section; see deploy/. Every option below is vLLM's own."""
_NOT_IN_FILES = {"model_tag", "config", "additional_config", "help"}


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit code."""
    try:
        args = parse(arguments)
    except VoxNativeError as error:
        sys.stderr.write(f"voxnative serve: {error}\n")
        return EXIT_BAD_INPUT
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args

    configure_logging_from_args(args)
    command = ServeSubcommand()
    command.validate(args)
    command.cmd(args)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """vLLM's parsed arguments, completed; sets the environment that its server reads.

    Raises:
        SettingsError: a deploy file or a setting is not valid.
        CheckpointError: MODEL cannot be found or read, or its weights do not fit.
    """
    prepare_environment()
    # vLLM reads its environment when it is imported.
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from voxnative.async_api import SHIPPED_CHECKPOINT
    from voxnative.checkpoint import resolve_checkpoint
    from voxnative.checkpoint_shapes import verify_checkpoint
    from voxnative.serving.deploy import Deploy, as_flags, read_deploy
    from voxnative.serving.settings import CONFIG_KEY, ServerSettings, SettingsError

    cli_env_setup()
    parser = make_arg_parser(
        FlexibleArgumentParser(prog="voxnative serve", usage=_USAGE, description=_DESCRIPTION)
    )
    model, deploy_file, flags = _split(arguments)
    known = vars(parser.parse_args([])).keys() - _NOT_IN_FILES
    deploy = read_deploy(deploy_file, known) if deploy_file else Deploy()
    given = [*as_flags(deploy.engine), *flags]

    wanted = parser.parse_args(given)
    directory = resolve_checkpoint(model or deploy.engine.get("model") or SHIPPED_CHECKPOINT)
    config = VoxConfig.from_dir(directory)
    verify_checkpoint(directory, config)
    args = parser.parse_args([*as_flags(_implied(directory, config, wanted)), *given])
    if any(flag.split("=")[0] == "--model" for flag in flags):
        raise SettingsError("--model is not valid here; valid: MODEL as the first argument")
    args.model = str(directory)
    args.subparser = "serve"
    others = dict(args.additional_config or {})
    section = {**deploy.server, **others.pop(CONFIG_KEY, {})}
    ServerSettings.from_mapping(section)
    args.additional_config = {**others, CONFIG_KEY: section}
    return args


def prepare_environment() -> None:
    """Allow our routes among vLLM's plugins, and outlive the engine to say that it died."""
    allowed = os.environ.get("VLLM_PLUGINS")
    names = set(allowed.split(",")) if allowed is not None else _plugins_loaded_by_default()
    os.environ["VLLM_PLUGINS"] = ",".join(sorted(names | {PLUGIN_NAME}))
    # Otherwise vLLM's watchdog ends the server within 5 s of the engine's death, and clients see
    # refused connections instead of 503. A supervisor restarts it by /health.
    os.environ.setdefault("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1")


def _plugins_loaded_by_default() -> set[str]:
    return {
        point.name
        for group in _OPEN_GROUPS
        for point in entry_points(group=f"vllm.{group}_plugins")
    }


def _split(arguments: Sequence[str]) -> tuple[str | None, Path | None, list[str]]:
    """MODEL, deploy file, and the flags that are vLLM's."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--deploy", type=Path)
    found, flags = own.parse_known_args(list(arguments))
    has_model = bool(flags) and not flags[0].startswith("-")
    return (flags.pop(0) if has_model else None), found.deploy, flags


def _implied(directory: Path, config: VoxConfig, wanted: argparse.Namespace) -> dict[str, Any]:
    """Settings that follow from the checkpoint, the machine and what is wanted of both."""
    from vllm.platforms import current_platform

    from voxnative.engine.start import engine_settings

    machine = "cpu" if current_platform.is_cpu() else "gpu"
    settings = engine_settings(
        directory,
        config,
        dtype=None if wanted.dtype == "auto" else wanted.dtype,
        max_num_seqs=wanted.max_num_seqs or _DEFAULT_NUM_SEQS[machine],
        max_model_len=wanted.max_model_len,
        kv_cache_memory_bytes=wanted.kv_cache_memory_bytes,
        tensor_parallel_size=wanted.tensor_parallel_size,
        data_parallel_size=wanted.data_parallel_size,
    )
    if wanted.data_parallel_size > 1 and not wanted.headless:
        # vLLM would start a front end for each replica. They share no queue, and they end when
        # one replica does: clients would see refused connections instead of 503.
        settings["api_server_count"] = 1
    return {key: value for key, value in settings.items() if key not in _LEFT_TO_SERVER}
