"""One CUDA graph a batch bucket, of any function over static buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from voxnative.batch_buckets import bucket_of


class BucketedCalls:
    """Runs a function on the smallest bucket that holds the rows, captured where it can be.

    The function takes a bucket and works on the first ``bucket`` rows of buffers that never
    move; whoever fills the buffers pads the rows behind the real ones. Without a capture (a
    CPU, eager mode) the same function runs directly, on the same padded rows.

    Args:
        call: the function.
        buckets: ascending batch sizes, the largest last.
        name: for the report.
    """

    def __init__(self, call: Callable[[int], None], buckets: Sequence[int], name: str) -> None:
        self.call = call
        self.buckets = tuple(buckets)
        self.name = name
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.n_bytes = 0
        self.capture_s = 0.0

    def run(self, n_rows: int) -> int:
        """Run ``n_rows`` rows on the current stream.

        Returns:
            The bucket that ran.

        Raises:
            ValueError: more rows than the largest bucket.
        """
        bucket = bucket_of(n_rows, self.buckets)
        graph = self.graphs.get(bucket)
        if graph is None:
            self.call(bucket)
        else:
            graph.replay()
        return bucket

    def capture(self, device: torch.device, on_bucket: Callable[[int], None]) -> None:
        """Capture every bucket, the largest first, so that smaller ones fit in its memory.

        Graphs of one object share a memory pool: they must not run at the same time.

        Args:
            device: a CUDA device.
            on_bucket: called after each bucket, for a progress line.
        """
        started = time.perf_counter()
        torch.cuda.synchronize(device)
        free_before, _ = torch.cuda.mem_get_info(device)
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(device)
        for bucket in reversed(self.buckets):
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                self.call(bucket)  # kernels are compiled, workspaces made
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self.call(bucket)
            self.graphs[bucket] = graph
            on_bucket(bucket)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free_after, _ = torch.cuda.mem_get_info(device)
        self.n_bytes = max(0, free_before - free_after)
        self.capture_s = time.perf_counter() - started
