"""Ends open requests as soon as an engine that several front ends share has died.

With ``--api-server-count`` above 1 no front end owns the engines: vLLM's supervisor does
(``vllm/entrypoints/cli/serve.py:run_multi_api_server``), and it tells the front ends nothing of
them. A front end hears of an engine that fails, by the frame that it sends last, but not of one
that is killed. The supervisor notices that and ends the front ends, whose clients close without a
word to their readers (``AsyncLLM.shutdown`` cancels the task that would tell them). HTTP servers
wait for their open streams, so that all is silent until the supervisor kills them.

What tells of all this is the socket that outputs come through. Each engine has one connection to
it, from its start to its end, which the kernel closes with the process; and vLLM closes the socket
with the client. libzmq reports both.

Source: vLLM 0.32, ``vllm/v1/engine/core_client.py:MPClient``,
``vllm/v1/engine/core.py:EngineCoreProc.process_output_sockets``; libzmq, ``zmq_socket_monitor``.
"""

from __future__ import annotations

import asyncio

import zmq.asyncio
from vllm.logger import init_logger
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from zmq.constants import Event, SocketOption

from voxnative.engine.output import SpeechOutputProcessor

# Below vLLM's logger, whose level and format it takes over.
logger = init_logger("vllm.voxnative.connection_watch")

_LOST = Event.DISCONNECTED | Event.MONITOR_STOPPED
_watches: set[asyncio.Task[None]] = set()  # an event loop does not keep its tasks


def watch_connections(client: AsyncMPClient, processor: SpeechOutputProcessor) -> None:
    """Watch a client's engines where they are not its own; call it inside the event loop.

    With the first engine that is lost the client is dead, as vLLM's is, since its supervisor then
    ends all processes. Engines on other machines are not watched: a network may lose a connection
    and bring it back.

    Args:
        client: that has heard of all its engines; its constructor waits for them.
        processor: of its outputs; has the open requests.
    """
    resources = client.resources
    socket = resources.output_socket
    assert isinstance(socket, zmq.asyncio.Socket)
    if resources.engine_manager is not None or not _is_on_this_machine(socket):
        return
    monitor = socket.get_monitor_socket(_LOST)
    watch = asyncio.create_task(_watch(client, processor, monitor), name="voxnative-connections")
    _watches.add(watch)
    watch.add_done_callback(_watches.discard)


def _is_on_this_machine(socket: zmq.asyncio.Socket) -> bool:
    return bytes(socket.getsockopt(SocketOption.LAST_ENDPOINT)).startswith(b"ipc://")


async def _watch(
    client: AsyncMPClient, processor: SpeechOutputProcessor, monitor: zmq.asyncio.Socket
) -> None:
    socket = client.resources.output_socket
    try:
        await monitor.recv_multipart()  # whichever it is: no output will come
    finally:
        if socket is not None and not socket.closed:
            socket.disable_monitor()
        monitor.close(linger=0)
    n_open = len(processor.request_states)
    if not client.resources.engine_dead:  # not closed by us, and no engine has said that it fails
        logger.error("An engine has died: %d open requests end with an error.", n_open)
    end_all(client, processor)


def end_all(client: AsyncMPClient, processor: SpeechOutputProcessor) -> None:
    """Let everybody who waits for the engine go on, with an error."""
    client.resources.engine_dead = True
    processor.fail(list(processor.request_states), EngineDeadError())
    for answer in client.utility_results.values():
        if not answer.done():
            answer.set_exception(EngineDeadError())
    client.outputs_queue.put_nowait(EngineDeadError())  # ends whoever reads outputs
