"""What can be wrong with a benchmark before it runs."""

from voxnative.errors import VoxNativeError


class BenchError(VoxNativeError):
    """A matrix, a dataset, a server or a peer cannot be used; says which and what is valid."""
