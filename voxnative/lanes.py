"""The streams a step runs on, and what waits for what; on a CPU everything runs in order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Lanes:
    """Main stream (language models, solver), decoder stream, copy stream.

    Args:
        device: streams are made on a CUDA device only.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.decoder = torch.cuda.Stream(device) if self.is_cuda else None
        self.copy = torch.cuda.Stream(device) if self.is_cuda else None

    def on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
        """Work inside goes to the stream."""
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def mark(self, *, blocking: bool = False) -> torch.cuda.Event | None:
        """An event behind everything queued on the current stream.

        Args:
            blocking: a host that waits for it sleeps instead of spinning.
        """
        if not self.is_cuda:
            return None
        event = torch.cuda.Event(blocking=blocking)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Let the current stream wait for an event; the host does not."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def empty_host(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory of its own for one step, pinned where copies are asynchronous."""
        return torch.empty(shape, dtype=dtype, pin_memory=self.is_cuda)
