"""Products in 8-bit floats on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from voxnative.nn import fp8_linear
from voxnative.nn.fp8_kernel import quantize

pytestmark = [pytest.mark.full_model, pytest.mark.hardware_test(res="cuda", num_cards=1)]


@pytest.mark.parametrize("width", [1024, 4096])
def test_rows_are_rounded_as_torch_rounds_them(width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, width, device="cuda").bfloat16()
    x *= torch.logspace(-6, 3, 300, device="cuda")[:, None].bfloat16()
    x[2] = 0
    values, scales = quantize(x)
    expected, expected_scales = fp8_linear._quantize(x)
    assert torch.allclose(scales, expected_scales, rtol=1e-6)
    # A scale that differs in its last bit moves a value that lies between two numbers.
    assert float((values.float() == expected.float()).float().mean()) > 0.999


@pytest.mark.parametrize("rows", [1, 22, 1408])
def test_a_product_is_that_of_the_rounded_numbers(rows: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(rows, 1024, device="cuda").bfloat16()
    weight = fp8_linear.quantize_rows(torch.randn(2560, 1024, device="cuda").bfloat16())
    values, scales = quantize(x)
    expected = (values.float() @ weight.values.float().t()) * scales * weight.scales.t()
    error = (weight.product(x).float() - expected).norm() / expected.norm()
    assert float(error) < 5e-3
