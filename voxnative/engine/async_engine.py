"""vLLM's asynchronous engine with our output processor and replicas that outlive each other."""

from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor

from voxnative.engine.connection_watch import end_all, watch_connections
from voxnative.engine.output import SpeechOutputProcessor
from voxnative.engine.replicas import keep_living


class SpeechAsyncLLM(AsyncLLM):
    """Stock :class:`AsyncLLM`; ``generate`` yields ``SpeechRequestOutput`` once it is adopted.

    Source: vLLM 0.32, ``vllm/v1/engine/async_llm.py``.
    """

    output_processor: OutputProcessor

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Empty the prefix cache.

        Raises:
            ValueError: ``reset_running_requests`` was asked for. vLLM would drop each
                running request's last output, whose samples cannot be made again.
        """
        if reset_running_requests:
            raise ValueError(
                "reset_running_requests=True is not valid for speech: samples would be lost; "
                "valid: False"
            )
        return await super().reset_prefix_cache(False, reset_connector)


def adopt_engine(engine: AsyncLLM) -> None:
    """Give a stock engine our output processor and, where it has replicas, our client of them.

    Where other front ends share the engine, its death is watched for.

    Call it inside the engine's event loop and before its first request.
    """
    if isinstance(engine.output_processor, SpeechOutputProcessor):
        return
    if engine.output_handler is not None:
        engine.output_handler.cancel()  # it captured the stock processor and client
        engine.output_handler = None
    processor = engine.output_processor = SpeechOutputProcessor.from_stock(engine.output_processor)
    keep_living(engine, processor.fail)
    engine._run_output_handler()
    client: Any = engine.engine_core
    handler: Any = engine.output_handler
    # A shutdown cancels the handler before it can tell those who wait, and an HTTP server then
    # waits for them.
    handler.add_done_callback(lambda _: end_all(client, processor))
    watch_connections(client, processor)
