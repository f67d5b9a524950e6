"""vLLM's asynchronous engine with our output processor."""

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor

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
        super()._run_output_handler()
