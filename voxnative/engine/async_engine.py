"""vLLM's asynchronous engine with our output processor."""

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor

from voxnative.engine.death_watch import watch_replicas
from voxnative.engine.output import SpeechOutputProcessor


class SpeechAsyncLLM(AsyncLLM):
    """Stock :class:`AsyncLLM`; ``generate`` yields ``SpeechRequestOutput``.

    Source: vLLM 0.32, ``vllm/v1/engine/async_llm.py``.
    """

    output_processor: OutputProcessor

    def _run_output_handler(self) -> None:
        # The handler task captures self.output_processor, so ours must be in place first.
        if not isinstance(self.output_processor, SpeechOutputProcessor):
            self.output_processor = SpeechOutputProcessor.from_stock(self.output_processor)
        is_first_call = self.output_handler is None
        super()._run_output_handler()
        if is_first_call:
            watch_replicas(self)

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
    """Give a stock engine, as vLLM's server makes it, our output processor.

    Call it inside the engine's event loop and before its first request.
    """
    if isinstance(engine.output_processor, SpeechOutputProcessor):
        return
    if engine.output_handler is not None:
        engine.output_handler.cancel()  # it captured the stock processor
        engine.output_handler = None
    engine.output_processor = SpeechOutputProcessor.from_stock(engine.output_processor)
    engine._run_output_handler()
    watch_replicas(engine)
