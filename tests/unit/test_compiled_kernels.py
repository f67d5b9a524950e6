"""Triton's code generation for a Hopper GPU, which needs no GPU: the interpreter checks less."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from voxnative.nn import fp8_kernel, local_kernels, rope_kernel, vae_kernels

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 232_448  # of one program, at most
LOOSE = {"M", "B"}  # integers that may be anything; the others here are multiples of 16


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


def n_spilled(made: Any) -> int:
    """Bytes that registers of a compiled kernel spill, as the assembler's tool reports them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", report)
    assert found is not None, report
    return int(found.group(1))


@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize(("T", "rope", "tables"), [(11, True, "*fp32"), (5, False, "*bf16")])
def test_attention_of_a_patch(T: int, rope: bool, tables: str, group: int) -> None:
    made = compiled(
        local_kernels._attend_kernel, f"*bf16 {tables} {tables} *bf16 fp32", max(2, group),
        T=T, T_PAD=16, HEAD=128, N_HEADS=16, N_KV=2, GROUP=group, HAS_ROPE=rope, PRECISION="tf32",
    )  # fmt: skip
    assert n_spilled(made) < 128


def test_what_stands_between_the_products() -> None:
    compiled(local_kernels._norm_kernel, "*bf16 *bf16 *bf16 fp32", H=1024, H_PAD=1024)
    compiled(local_kernels._gate_kernel, "*bf16 *bf16", F=4096, BLOCK=2048)
    euler = "*bf16 *fp32 *fp32 *fp32 *fp32 fp32"
    compiled(local_kernels._euler_kernel, f"{euler} i32", 2, N=256, N_PAD=256)
    compiled(local_kernels._euler_kernel, euler, 2, N=256, N_PAD=256, B=1)
    rope = "*bf16 *fp32 *fp32 i32"
    compiled(rope_kernel._rotate_kernel, rope, N_ROTATED=18, N_PAD=32, HEAD=128)


def test_rows_to_eight_bits() -> None:
    """Its rounding is checked on a device: Triton's interpreter loses a carry there."""
    made = compiled(fp8_kernel._quantize_kernel, "*bf16 *fp8e4nv *fp32 fp32", K=4096, K_PAD=4096)
    assert n_spilled(made) == 0


@pytest.mark.parametrize("dtype", ["*fp32", "*fp16"])
@pytest.mark.parametrize("one", [True, False], ids=["one stream", "streams"])
def test_decoder(dtype: str, one: bool) -> None:
    def made(kernel: Any, n_pointers: int, integers: str, **constants: Any) -> None:
        names = integers.split()
        if one:
            names.remove("B")
            constants["B"] = 1
        types = " ".join([dtype] * n_pointers + ["i32"] * len(names))
        assert n_spilled(compiled(kernel, types, 2, **constants)) == 0

    made(
        vae_kernels._unit_kernel, 9, "C B N", DILATION=9, TAPS=7, PAD=54, PAD_BLOCK=64, BLOCK_N=256
    )
    strides = "C B N channel_stride stream_stride WIDTH"
    made(vae_kernels._context_kernel, 6, strides, PAD=1, BLOCK_N=256)
    made(vae_kernels._spread_kernel, 3, "B N COLUMNS", STRIDE=8, BLOCK_N=256)
