"""The values of GGUF tensors, computed with torch on any device, and their names in transformers.

A quantised tensor is a row of blocks. Each block has one or two scales and some bits per value; a K block of 256 values
has 8 or 16 parts with scales of their own. The results equal those of the package gguf bit by bit.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from scalerl.training.models.gguf_file import BLOCKS, GgufFile, GgufTensor

FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
"""Architectures (general.architecture) whose weights have the names below."""
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NOT_WEIGHTS = frozenset({"rope_freqs"})
"""Tensors that transformers computes from the configuration."""


class GgufWeights(Mapping[str, Tensor]):
    """The weights of a file by their names in transformers, in FP32; computed when they are accessed."""

    def __init__(self, file: GgufFile, config: Any, device: torch.device) -> None:
        self._file = file
        self._config = config
        self._device = device
        self._is_llama = file.metadata.get("general.architecture") == "llama"
        self._tensors = dict(named_tensors(file))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        values = tensor_values(self._file, self._tensors[name], self._device)
        # llama.cpp has both parts of a rotary pair side by side in a head, transformers has them half a head apart.
        if self._is_llama and "q_proj" in name:
            return _halves(values, self._config.num_attention_heads)
        if self._is_llama and "k_proj" in name:
            return _halves(values, self._config.num_key_value_heads)
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight without computing it."""
        return self._tensors[name].shape


def can_read(file: GgufFile) -> bool:
    """Return whether all weights of a file can be computed here."""
    if file.metadata.get("general.architecture") not in FAMILIES:
        return False
    known = dict(named_tensors(file))
    others = [name for name in file.tensors if name.partition(".")[0] in _NOT_WEIGHTS]
    return len(known) + len(others) == len(file.tensors) and all(tensor.kind for tensor in known.values())


def named_tensors(file: GgufFile) -> Iterator[tuple[str, GgufTensor]]:
    """Yield the tensors of a file with their names in transformers; those with unknown names are left out."""
    for name, tensor in file.tensors.items():
        parts = name.split(".")
        if len(parts) == 2 and parts[0] in _OUTSIDE:
            yield f"{_OUTSIDE[parts[0]]}.{parts[1]}", tensor
        elif len(parts) == 4 and parts[0] == "blk" and parts[2] in _INSIDE:
            yield f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}.{parts[3]}", tensor


def tensor_values(file: GgufFile, tensor: GgufTensor, device: torch.device) -> Tensor:
    """Return the values of a tensor in FP32 on a device, which decodes them."""
    with warnings.catch_warnings():
        # The file is mapped read-only, and nothing writes to these bytes.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        packed = torch.frombuffer(file.values(tensor), dtype=torch.uint8).to(device)
    return decode(packed, tensor.kind).reshape(tensor.shape)


def decode(packed: Tensor, kind: str) -> Tensor:
    """Return the values of blocks, given as bytes, in FP32."""
    if kind in _PLAIN:
        # A copy: on the CPU these bytes are the file's.
        return packed.view(_PLAIN[kind]).to(torch.float32, copy=True)
    _, _, size = BLOCKS[kind]
    return _DECODERS[kind](packed.view(-1, size)).reshape(-1)


def _halves(values: Tensor, heads: int) -> Tensor:
    rows, *rest = values.shape
    return values.view(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(values.shape)


def _float16(bytes_of: Tensor) -> Tensor:
    """Return the FP16 numbers in these columns as FP32, [blocks, numbers]."""
    return bytes_of.contiguous().view(torch.float16).float()


def _nibbles(bytes_of: Tensor) -> Tensor:
    """Return the low halves of bytes, then their high halves, [blocks, 2, bytes]."""
    return torch.stack([bytes_of & 0x0F, bytes_of >> 4], dim=1)


def _fifth_bits(bytes_of: Tensor) -> Tensor:
    """Return the bits of four bytes as 16 for set ones, [blocks, 2, 16]."""
    shifts = torch.arange(8, device=bytes_of.device, dtype=torch.uint8)
    bits = (bytes_of[:, :, None] >> shifts) & 1
    return (bits << 4).view(-1, 2, 16)


def _q4_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 2:]).to(torch.int8) - 8
    return _float16(blocks[:, :2])[:, :, None] * codes


def _q4_1(blocks: Tensor) -> Tensor:
    scale = _float16(blocks[:, :2])
    least = _float16(blocks[:, 2:4])
    return scale[:, :, None] * _nibbles(blocks[:, 4:]) + least[:, :, None]


def _q5_0(blocks: Tensor) -> Tensor:
    codes = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).to(torch.int8) - 16
    return _float16(blocks[:, :2])[:, :, None] * codes


def _q5_1(blocks: Tensor) -> Tensor:
    scale = _float16(blocks[:, :2])
    least = _float16(blocks[:, 2:4])
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return scale[:, :, None] * codes + least[:, :, None]


def _q8_0(blocks: Tensor) -> Tensor:
    return _float16(blocks[:, :2]) * blocks[:, 2:].contiguous().view(torch.int8)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and minimum of the eight parts of each K block, [blocks, 8, 1]; both have 6 bits in 12 bytes."""
    packed = blocks[:, 4:16].view(-1, 3, 4)
    first, second, third = packed.unbind(1)
    scales = torch.cat([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], dim=1)
    minima = torch.cat([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], dim=1)
    scale = _float16(blocks[:, :2])
    least = _float16(blocks[:, 2:4])
    return (scale * scales)[:, :, None], (least * minima)[:, :, None]


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 32)).view(-1, 8, 32)
    return scales * codes - minima


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 32)).view(-1, 8, 32)
    shifts = torch.arange(8, device=blocks.device, dtype=torch.uint8)[:, None]
    high = (blocks[:, 16:48][:, None] >> shifts) & 1
    return scales * (low | (high << 4)) - minima


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([low & 0x0F, low >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], device=blocks.device, dtype=torch.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).to(torch.int8) - 32
    scales = _float16(blocks[:, 208:]) * blocks[:, 192:208].contiguous().view(torch.int8)
    return scales[:, :, None] * codes.view(-1, 16, 16)


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DECODERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
