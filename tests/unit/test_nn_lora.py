"""Adapters batched by row: each row equals the merged layer, and rows without one are untouched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from voxnative.nn.lora import AdaptedLinear, AdapterRows, LowRank, NetAdapters

N_IN, N_OUT = 12, 20


def pair(rank: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, N_IN, generator=generator), torch.randn(
        N_OUT, rank, generator=generator
    )


@pytest.fixture
def base() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(N_IN, N_OUT).requires_grad_(False)


@pytest.fixture
def layer(base: nn.Linear) -> AdaptedLinear:
    """Slot 1 has rank 4, slot 2 rank 2, slot 3 nothing."""
    layer = AdaptedLinear(base, LowRank(base, AdapterRows(), n_adapters=3, max_rank=4))
    layer.low_rank.write(1, pair(4, 1))
    layer.low_rank.write(2, pair(2, 2))
    return layer


def merged(base: nn.Linear, matrices: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    a, b = matrices
    return nn.functional.linear(x, base.weight + b @ a, base.bias)


@pytest.mark.parametrize("shape", [(5, N_IN), (5, 3, N_IN)], ids=["vectors", "sequences"])
def test_each_row_has_its_own_adapter(
    shape: tuple[int, ...], base: nn.Linear, layer: AdaptedLinear
) -> None:
    x = torch.randn(shape)
    with layer.low_rank.rows.using(torch.tensor([2, 0, 1, 3, 2])):
        y = layer(x)
    expected = [
        merged(base, pair(2, 2), x[0]),
        base(x[1]),
        merged(base, pair(4, 1), x[2]),
        base(x[3]),
        merged(base, pair(2, 2), x[4]),
    ]
    for got, wanted in zip(y, expected, strict=True):
        assert (got - wanted).abs().max() < 1e-5
    assert torch.equal(y[1], layer(x)[1])  # slot 0 adds exact zeros
    assert not torch.allclose(y[0], base(x[0]), atol=0.1)


@pytest.mark.parametrize("shape", [(5, N_IN), (5, 3, N_IN)], ids=["vectors", "sequences"])
def test_masked_rows_equal_gathered_ones(
    shape: tuple[int, ...], base: nn.Linear, layer: AdaptedLinear
) -> None:
    """Also for a batch that holds its rows twice, and where the host knows of no adapter."""
    rows = layer.low_rank.rows
    rows.column_slots = torch.arange(4).repeat_interleave(4)
    x, slots = torch.randn(shape), torch.tensor([2, 0, 1, 3, 2])
    with rows.using(slots):
        expected = layer(x)
        layer.low_rank.taken.clear()
        with rows.using(slots, masked=True):
            y, twice = layer(x), layer(torch.cat((x, x)))
        assert torch.equal(layer(x), base(x))  # gathered again
    assert (y - expected).abs().max() < 1e-5
    assert torch.equal(y[[1, 3]], base(x)[[1, 3]])
    assert (twice - torch.cat((y, y))).abs().max() < 1e-6
    assert not torch.allclose(y[0], base(x[0]), atol=0.1)


def test_outside_a_batch_the_layer_is_the_base(base: nn.Linear, layer: AdaptedLinear) -> None:
    x = torch.randn(4, N_IN)
    assert torch.equal(layer(x), base(x))
    with layer.low_rank.rows.using(torch.tensor([1, 1, 1, 1])):
        assert not torch.allclose(layer(x), base(x), atol=0.1)
    assert torch.equal(layer(x), base(x))


def test_a_doubled_batch_is_routed_like_its_rows(base: nn.Linear, layer: AdaptedLinear) -> None:
    x = torch.randn(2, N_IN)
    members = torch.tensor([2, 0])
    with layer.low_rank.rows.using(torch.tensor([1, 0, 2])), layer.low_rank.rows.pairs_of(members):
        y = layer(torch.cat((x, x)))
    for half in y.chunk(2):
        assert (half[0] - merged(base, pair(2, 2), x[0])).abs().max() < 1e-5
        assert (half[1] - merged(base, pair(4, 1), x[1])).abs().max() < 1e-5
    with layer.low_rank.rows.pairs_of(members):
        assert torch.equal(layer(x), base(x))


def test_a_slot_holds_nothing_of_the_adapter_before(base: nn.Linear, layer: AdaptedLinear) -> None:
    x = torch.randn(1, N_IN)
    layer.low_rank.write(1, pair(2, 5))  # of a smaller rank than before
    with layer.low_rank.rows.using(torch.tensor([1])):
        assert (layer(x) - merged(base, pair(2, 5), x)).abs().max() < 1e-5
        layer.low_rank.write(1, None)
        assert torch.equal(layer(x), base(x))
    assert layer.low_rank.taken == {2}


def test_layers_are_replaced_where_wanted_and_keep_their_parameters() -> None:
    net = nn.Sequential(nn.Linear(N_IN, N_OUT), nn.Sequential(nn.Linear(N_OUT, 4), nn.ReLU()))
    before = dict(net.named_parameters())
    adapters = NetAdapters(net, AdapterRows(), lambda path: path != "0", 2, 4)
    assert list(adapters.layers) == ["1.0"]
    assert isinstance(net.get_submodule("1.0"), AdaptedLinear)
    assert dict(net.named_parameters()) == before
    assert net.state_dict().keys() == before.keys()
    adapters.write(1, {"1.0": (torch.ones(1, N_OUT), torch.ones(4, 1))})
    assert adapters.layers["1.0"].taken == {1}
    adapters.write(1, {})
    assert adapters.layers["1.0"].taken == set()
