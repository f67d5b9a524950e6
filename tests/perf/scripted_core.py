"""A process that speaks vLLM's engine-core protocol and sends ready samples at any pace.

For measurements of the front end alone: everything in front of the sockets is the real code.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import zmq
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

IDENTITY = (0).to_bytes(2, "little")
TASKS = ("generate",)


@dataclass
class _Live:
    request_id: str
    n_left: int


class ScriptedCore:
    """The process; make it before the front end imports start threads of their own.

    Requests wait until :meth:`speak` says how many of them run together; each then gets a chunk a
    step, as many as its ``max_tokens``. After :meth:`speak_on` none waits. A step is never shorter
    than it is told to be: what comes late is not made up for.

    Args:
        folder: for the sockets.
        chunk_samples: length of a chunk.
    """

    def __init__(self, folder: str, chunk_samples: int) -> None:
        self.addresses = {
            "input_address": f"ipc://{folder}/in",
            "output_address": f"ipc://{folder}/out",
        }
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(self.addresses, chunk_samples, theirs), daemon=True
        )
        self._process.start()

    def speak(self, n_requests: int, step_s: float) -> None:
        """Send chunks as soon as so many requests are there, a step every `step_s`."""
        self._pipe.send((n_requests, step_s, False))

    def speak_on(self, step_s: float) -> None:
        """Send chunks to whoever is there, a step every `step_s`, from now on."""
        self._pipe.send((1, step_s, True))

    def arrivals_s(self) -> list[float]:
        """``time.perf_counter()`` of every request since the last call."""
        self._pipe.send(None)
        times: list[float] = self._pipe.recv()
        return times

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(addresses: dict[str, str], chunk_samples: int, pipe: Connection) -> None:
    zmq_context = zmq.Context()
    inputs = zmq_context.socket(zmq.DEALER)
    inputs.setsockopt(zmq.IDENTITY, IDENTITY)
    inputs.connect(addresses["input_address"])
    outputs = zmq_context.socket(zmq.PUSH)
    outputs.connect(addresses["output_address"])
    inputs.send(b"")  # ready
    add_decoder, decoder = MsgpackDecoder(EngineCoreRequest), MsgpackDecoder()
    encoder = MsgpackEncoder()
    speech = 0.1 * torch.sin(torch.arange(chunk_samples) * 0.05)
    live: dict[str, _Live] = {}
    arrived: list[float] = []
    n_wanted, step_s, goes_on, due_s = 0, 0.0, False, float("inf")
    poller = zmq.Poller()
    poller.register(inputs, zmq.POLLIN)
    poller.register(pipe.fileno(), zmq.POLLIN)

    def send(message: EngineCoreOutputs) -> None:
        outputs.send_multipart(encoder.encode(message), copy=False)

    def take(kind: EngineCoreRequestType, frames: list[Any]) -> None:
        if kind is EngineCoreRequestType.ADD:
            arrived.append(time.perf_counter())
            request = add_decoder.decode(frames)
            live[request.request_id] = _Live(request.request_id, request.sampling_params.max_tokens)
        elif kind is EngineCoreRequestType.ABORT:
            for request_id in decoder.decode(frames):
                live.pop(request_id, None)
        elif kind is EngineCoreRequestType.UTILITY:
            _, call_id, method, _ = decoder.decode(frames)
            result = TASKS if method == "get_supported_tasks" else None
            answer = UtilityOutput(call_id, result=UtilityResult(result))
            send(EngineCoreOutputs(utility_output=answer))

    while True:
        wait_ms = None if due_s == float("inf") else max(0.0, 1000 * (due_s - time.perf_counter()))
        for source, _ in poller.poll(wait_ms):
            if source is inputs:
                kind, *frames = inputs.recv_multipart(copy=False)
                take(EngineCoreRequestType(bytes(kind.buffer)), frames)
            else:
                order = pipe.recv()
                if order is None:
                    pipe.send(arrived)
                    arrived = []
                else:
                    n_wanted, step_s, goes_on = order
        if due_s == float("inf") and n_wanted and len(live) >= n_wanted:
            due_s = time.perf_counter()
        if time.perf_counter() < due_s:
            continue
        step = []
        for request in list(live.values()):
            request.n_left -= 1
            is_last = request.n_left == 0
            step.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[0],
                    pooling_output=speech.clone(),
                    finish_reason=FinishReason.LENGTH if is_last else None,
                )
            )
            if is_last:
                del live[request.request_id]
        send(EngineCoreOutputs(outputs=step))
        due_s = max(due_s + step_s, time.perf_counter())
        if not live:
            due_s, n_wanted = float("inf"), n_wanted if goes_on else 0
