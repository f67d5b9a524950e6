"""Data-parallel replicas of which each may die without the others.

vLLM's client gives an engine up as a whole: a thread of its ends all processes when one has ended
(``MPClient.start_engine_core_monitor``, ``CoreEngineProcManager.monitor_engine_liveness``), and its
reader of outputs ends with the one frame that a failing process sends
(``BackgroundResources.validate_alive``). Replicas of this model are independent processes
(``core.py:EngineCoreProc.run_engine_core``): nothing in the others waits for the dead one.

vLLM offers no way to choose the client that its ``AsyncLLM`` makes, so :func:`keep_living` puts a
subclass in its place, which takes over what the stock one has set up. Two finalizers of the stock
objects are detached, since the thread works through them; ours does what they did.

Source: vLLM 0.32, ``vllm/v1/engine/core_client.py``, ``vllm/v1/engine/utils.py``.
"""

from __future__ import annotations

import asyncio
import multiprocessing.connection
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import (
    BackgroundResources,
    DPLBAsyncMPClient,
    _process_utility_output,
)
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.utils import shutdown

# Below vLLM's logger, whose level and format it takes over.
logger = init_logger("vllm.voxnative.replicas")

# Seconds for a replica to say that it is not the one that failed. A step may be under way, so that
# nobody is blamed before the failed one's process should have ended by itself, unless all others
# have answered.
ANSWER_S = 30.0
LAST_ANSWER_S = 1.0
Fail = Callable[[Sequence[str], Exception], None]
Tell = Callable[[int, int], None]


def keep_living(engine: AsyncLLM, fail: Fail) -> None:
    """Let the replicas of an engine outlive each other; call it inside the engine's event loop.

    An engine without replicas stays as it is, and so does one whose replicas are not all processes
    of this one: on other machines, or behind several front ends, where vLLM's supervisor has them.

    Args:
        engine: without requests so far; its output handler has to be started after this.
        fail: ends requests, by their ids, with an error.
    """
    stock = engine.engine_core
    manager = stock.resources.engine_manager
    if (
        isinstance(stock, DPLBAsyncMPClient)
        and isinstance(manager, CoreEngineProcManager)
        and len(manager.processes) == len(stock.core_engines)
        and not engine.vllm_config.parallel_config.enable_fault_tolerance  # vLLM's own
    ):
        manager._finalizer.detach()
        engine.engine_core = ReplicaClient.from_stock(stock, manager.processes, fail)


class ReplicaClient(DPLBAsyncMPClient):
    """vLLM's client of several replicas, which goes on with those that live.

    ``core_engines`` holds the living ones: requests and calls go there. The requests of a dead one
    end with ``EngineDeadError``. With the last replica the engine is dead, as vLLM's is.
    """

    _processes: dict[bytes, BaseProcess]  # of all replicas, by their names on vLLM's sockets
    _ended: dict[bytes, asyncio.Future[None]]  # done when the replica is lost
    _n_given: Counter[bytes]  # requests so far
    _fail: Fail
    _listeners: list[Tell]
    _inquiries: set[asyncio.Task[None]]

    @classmethod
    def from_stock(
        cls, stock: DPLBAsyncMPClient, processes: list[BaseProcess], fail: Fail
    ) -> ReplicaClient:
        """Take over a fresh client's sockets, and the replicas' processes in the order of ranks.

        It must have no request yet.
        """
        assert not stock.reqs_in_flight, "requests were sent before the client was replaced"
        client = cls.__new__(cls)
        client.__dict__.update(stock.__dict__)
        resources = client.resources
        stock._finalizer.detach()
        client._finalizer = weakref.finalize(client, _end, processes, resources)
        # What the tasks of the stock client hold is the stock client and its queue. The second one
        # reads how busy replicas are, for several front ends; a single one counts for itself.
        for task in (resources.output_queue_task, resources.stats_update_task):
            if task is not None:
                task.cancel()
        resources.output_queue_task = resources.stats_update_task = None
        client.outputs_queue = asyncio.Queue()
        loop = asyncio.get_running_loop()
        client._processes = dict(zip(client.core_engines, processes, strict=True))
        client._ended = {engine: loop.create_future() for engine in client.core_engines}
        client._n_given = Counter()
        client._fail = fail
        client._listeners = []
        client._inquiries = set()
        client._ensure_output_queue_task()
        arguments = (client._processes, loop, weakref.ref(client))
        threading.Thread(
            target=_wait, args=arguments, daemon=True, name="voxnative-replicas"
        ).start()
        return client

    def listen(self, tell: Tell) -> None:
        """Call ``tell(n_alive, n_replicas)`` now and after every death."""
        self._listeners.append(tell)
        tell(len(self.core_engines), len(self._processes))

    def shutdown(self, timeout: float | None = None) -> None:
        """End all processes; after that, nothing is a death any more."""
        if self._finalizer.detach() is not None:
            _end(list(self._processes.values()), self.resources, timeout)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Send a request; vLLM's word to replicas that run in lockstep is for other models."""
        request.client_index = self.client_index
        engine = self.get_core_engine_for_request(request)
        await self._send_input(EngineCoreRequestType.ADD, request, engine)

    def get_core_engine_for_request(self, request: EngineCoreRequest) -> bytes:
        """The living replica with the fewest requests, and of several the one that got the fewest.

        Raises:
            EngineDeadError: none lives.
        """
        self.ensure_alive()
        counts = self.engine_inflight, self._n_given
        engine = least_busy(self.core_engines, *counts, request.data_parallel_rank)
        self.reqs_in_flight[request.request_id] = engine
        for count in counts:
            count[engine] += 1
        return engine

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        """Results of the replicas that live, and live on until they answer.

        Raises:
            EngineDeadError: there is none.
        """
        calls = [self._call_utility_async(method, *args, engine=e) for e in self.core_engines]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        results = [answer for answer in answers if not isinstance(answer, EngineDeadError)]
        if not results:
            raise EngineDeadError()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def _call_utility_async(self, method: str, *args: Any, engine: bytes) -> Any:
        """One replica's result.

        Raises:
            EngineDeadError: it died before it answered.
        """
        call = asyncio.create_task(super()._call_utility_async(method, *args, engine=engine))
        try:
            await asyncio.wait((call, self._ended[engine]), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise EngineDeadError()
            return call.result()
        finally:
            call.cancel()  # where it has not ended

    def _ensure_output_queue_task(self) -> None:
        """Read the outputs: as vLLM does, but a replica's failure ends nobody's reading."""
        if self.resources.output_queue_task is None:
            task = asyncio.create_task(self._read(), name="voxnative-outputs")
            task.add_done_callback(self._reading_ended)
            self.resources.output_queue_task = task

    async def _read(self) -> None:
        while True:
            frames = await self.resources.output_socket.recv_multipart(copy=False)
            if len(frames) == 1 and frames[0].buffer == EngineCoreProc.ENGINE_CORE_DEAD:
                self._inquire()
                continue
            outputs: EngineCoreOutputs = self.decoder.decode(frames)
            if _identity(outputs.engine_index) not in self.core_engines:
                continue  # it died while this was on its way, and its requests have ended
            if outputs.utility_output:
                _process_utility_output(outputs.utility_output, self.utility_results)
                continue
            await self.process_engine_outputs(self, outputs)
            if outputs.outputs or outputs.scheduler_stats:
                self.outputs_queue.put_nowait(outputs)

    def _reading_ended(self, task: asyncio.Task[None]) -> None:
        """Nothing will come any more: by an error, or because the client is shut down."""
        error = None if task.cancelled() else task.exception()
        self.outputs_queue.put_nowait(error or EngineDeadError())

    def _inquire(self) -> None:
        inquiry = asyncio.create_task(self._find_the_failed())
        self._inquiries.add(inquiry)
        inquiry.add_done_callback(self._inquiries.discard)

    async def _find_the_failed(self) -> None:
        """Somebody has failed and does not say who: one that no longer answers when others do.

        Its process ends by itself, but takes seconds in which its requests would be silent.
        """
        n_alive = len(self.core_engines)
        asked = {asyncio.create_task(self._answer(e)): e for e in self.core_engines}
        silent = set(asked)
        while silent:
            limit_s = LAST_ANSWER_S if len(silent) == 1 else ANSWER_S
            done, silent = await asyncio.wait(
                silent, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
        is_known = len(self.core_engines) < n_alive  # its process has ended meanwhile
        for call in silent:
            call.cancel()
            if not is_known:
                self._lose(asked[call])

    async def _answer(self, engine: bytes) -> None:
        with suppress(EngineDeadError):
            await self._call_utility_async("is_sleeping", engine=engine)

    def _lose(self, engine: bytes) -> None:
        """A replica has failed, or its process has ended, or first the one and then the other."""
        if engine not in self.core_engines or not self._finalizer.alive:
            return  # known, or ended by us
        self.core_engines.remove(engine)
        self._ended[engine].set_result(None)
        lost = [name for name, runner in self.reqs_in_flight.items() if runner == engine]
        for name in lost:
            del self.reqs_in_flight[name]
        del self.engine_inflight[engine]
        exit_code = self._processes[engine].exitcode
        logger.error(
            "Replica %d %s: %d requests end with an error; %d of %d replicas live on.",
            _rank(engine),
            "has failed" if exit_code is None else f"has died (exit code {exit_code})",
            len(lost),
            len(self.core_engines),
            len(self._processes),
        )
        self.resources.engine_dead = not self.core_engines
        self._fail(lost, EngineDeadError())
        nothing_runs = EngineCoreOutputs(_rank(engine), scheduler_stats=SchedulerStats())
        self.outputs_queue.put_nowait(nothing_runs)  # for vLLM's metrics
        if self.resources.engine_dead:
            self.outputs_queue.put_nowait(EngineDeadError())
        for tell in self._listeners:
            tell(len(self.core_engines), len(self._processes))


def least_busy(
    engines: Sequence[bytes],
    n_open: Mapping[bytes, int],
    n_given: Mapping[bytes, int],
    wanted_rank: int | None = None,
) -> bytes:
    """Where the next request goes.

    Args:
        engines: the living ones.
        n_open: requests of each that have not ended.
        n_given: requests of each so far.
        wanted_rank: a replica that the request names; it gets it if it lives.
    """
    if wanted_rank is not None and _identity(wanted_rank) in engines:
        return _identity(wanted_rank)
    return min(engines, key=lambda engine: (n_open[engine], n_given[engine]))


def _identity(rank: int) -> bytes:
    """How vLLM's sockets know a replica."""
    return rank.to_bytes(2, "little")


def _rank(engine: bytes) -> int:
    return int.from_bytes(engine, "little")


def _wait(
    processes: Mapping[bytes, BaseProcess],
    loop: asyncio.AbstractEventLoop,
    client_ref: weakref.ref[ReplicaClient],
) -> None:
    """Tell the client of each process that ends; runs in a thread, until all have."""
    engine_of = {process.sentinel: engine for engine, process in processes.items()}
    while engine_of:
        for sentinel in multiprocessing.connection.wait(list(engine_of)):
            engine = engine_of.pop(sentinel)  # type: ignore[arg-type]
            processes[engine].join(1.0)  # so that its exit code is known
            client = client_ref()
            if client is None or loop.is_closed():
                return
            loop.call_soon_threadsafe(client._lose, engine)
            del client


def _end(
    processes: Sequence[BaseProcess], resources: BackgroundResources, timeout: float | None = None
) -> None:
    """End the processes, then all else that the client holds."""
    shutdown(list(processes), timeout=timeout)
    resources()
