"""Triton's code generation for a Hopper GPU, which needs no GPU: the interpreter checks less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from voxnative.nn import local_kernels, rope_kernel, vae_kernels
from voxnative.nn.fused_kernels import TILES, are_skinny

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 232_448  # of one program, at most
LOOSE = {"M", "B"}  # integers that may be anything; the others here are multiples of 16
SKINNY = {  # N, K at the published sizes; norm, gate, residual
    "qkv": (2560, 1024, True, False, False),
    "out": (1024, 2048, False, False, True),
    "gate_up": (4096, 1024, True, True, False),
    "down": (1024, 4096, False, False, True),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel: Any, types: str, warps: int = 4, stages: int = 3, **constants: Any) -> Any:
    """A kernel as the launcher would compile it.

    Args:
        kernel: the kernel.
        types: one type for each argument that is no constant, in order.
        warps, stages: as at the launch.
        constants: its ``tl.constexpr`` arguments.
    """
    given = iter(types.split())
    signature, values, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(i,)] = "constexpr", constants[name]
            continue
        signature[name] = next(given)
        if signature[name] != "fp32" and name not in LOOSE:
            attributes[(i,)] = [["tt.divisibility", 16]]
    assert next(given, None) is None
    source = ASTSource(kernel, signature, values, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=HOPPER, options=options)
    assert made.metadata.shared <= SHARED_BYTES
    assert made.asm["cubin"]
    return made


@pytest.mark.parametrize("name", TILES)
def test_skinny_products(name: str) -> None:
    N, K, norm, gated, residual = SKINNY[name]
    tile = TILES[name]
    compiled(
        local_kernels._skinny_kernel, "*bf16 *bf16 *bf16 *bf16 *bf16 fp32 fp32 i32",
        tile.warps, tile.stages, N=N, K=K, M_PAD=64, TILE_N=tile.n, TILE_K=tile.k,
        HAS_NORM=norm, IS_GATED=gated, HAS_RESIDUAL=residual, PRECISION="tf32",
    )  # fmt: skip


def test_skinny_products_of_four_byte_values_are_the_librarys() -> None:
    most = local_kernels.MAX_SKINNY_ROWS
    assert are_skinny(most, 2, is_cuda=True)
    assert not are_skinny(most + 1, 2, is_cuda=True)
    # Four stages of [64 rows + 16 columns, 256] take more than there is.
    assert 4 * (64 + TILES["qkv"].n) * TILES["qkv"].k * 4 > SHARED_BYTES
    assert not are_skinny(1, 4, is_cuda=True)


@pytest.mark.parametrize(("T", "rope", "tables"), [(11, True, "*fp32"), (5, False, "*bf16")])
def test_attention_of_a_patch(T: int, rope: bool, tables: str) -> None:
    compiled(
        local_kernels._attend_kernel, f"*bf16 {tables} {tables} *bf16 fp32", 2, T=T, T_PAD=16,
        HEAD=128, N_HEADS=16, N_KV=2, HAS_ROPE=rope, PRECISION="tf32",
    )  # fmt: skip


def test_what_stands_between_the_products() -> None:
    compiled(local_kernels._norm_kernel, "*bf16 *bf16 *bf16 fp32", H=1024, H_PAD=1024)
    compiled(local_kernels._gate_kernel, "*bf16 *bf16", F=4096, BLOCK=2048)
    euler = "*bf16 *fp32 *fp32 *fp32 *fp32 fp32"
    compiled(local_kernels._euler_kernel, f"{euler} i32", 2, N=256, N_PAD=256)
    compiled(local_kernels._euler_kernel, euler, 2, N=256, N_PAD=256, B=1)
    rope = "*bf16 *fp32 *fp32 i32"
    compiled(rope_kernel._rotate_kernel, rope, N_ROTATED=18, N_PAD=32, HEAD=128)


@pytest.mark.parametrize("dtype", ["*fp32", "*fp16"])
def test_decoder(dtype: str) -> None:
    compiled(
        vae_kernels._unit_kernel, " ".join([dtype] * 9) + " i32 i32", 2, DILATION=9, TAPS=7,
        PAD=54, PAD_BLOCK=64, BLOCK_N=256,
    )  # fmt: skip
    context = " ".join([dtype] * 6) + " i32 i32"
    compiled(vae_kernels._context_kernel, context, 2, PAD=1, BLOCK_N=256)
    compiled(
        vae_kernels._spread_kernel, f"{dtype} {dtype} {dtype} i32 i32", 2, STRIDE=8, BLOCK_N=256
    )
