"""The engine's own copy of a causal language model, from tokens to hidden states.

Two bodies have the same signature, (tokens, positions, pass over the cache) -> hidden states. `GeneralBody` calls the
transformers model with our attention. `FusedBody` runs the layers of Llama-like models itself, with one product for
queries, keys and values, one for gate and up, and tables for the rotary embedding. It launches a third of the
operations, which dominate the time of a small model.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from scalerl.training.models.lora import AdaptedLinear, has_adapters, is_adapter
from scalerl.training.models.nf4 import Nf4Linear
from scalerl.training.rl.bf16_products import fp32_linear, takes_fp32, use_fp32_linears
from scalerl.training.rollout.torch.cache import ATTENTION, KernelPass, Pass, slot_attention

FUSED_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types that FusedBody supports (SmolLM and SmolLM2 are llama)."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend only on the position, so that a table can hold them."""


def own_copy(model: Any, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Any:
    """Return a copy of the model for inference; it shares only memory that never changes.

    If the model has adapters, only those are pushed, so all other weights are shared.
    """
    from transformers import AttentionInterface

    constant: dict[int, Any] = {}
    if has_adapters(model):
        kind = torch.device(device or model.device), dtype or model.dtype
        for name, parameter in model.named_parameters():
            if not is_adapter(name) and (parameter.device, parameter.dtype) == kind:
                constant[id(parameter)] = parameter
    owned = copy.deepcopy(model, dict(constant))
    for parameter in owned.parameters():
        if id(parameter) in constant:
            continue
        parameter.grad = None
        parameter.requires_grad_(False)
        # Do not call owned.to(dtype), which would also round the rotary frequencies: they are buffers.
        parameter.data = parameter.data.to(device=device, dtype=dtype)
    owned.to(device=device)
    use_fp32_linears(owned)
    owned.eval()
    AttentionInterface.register(ATTENTION, slot_attention)
    owned.config._attn_implementation = ATTENTION
    return owned


def check_model(model: Any, max_length: int) -> None:
    """Raise ValueError if the model's attention window or position limit is shorter than `max_length`.

    training/models/load.py rejects models whose layers or logits are not supported.
    """
    config = model.config
    name = type(model).__name__
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise ValueError(f"a context of {max_length} tokens is longer than the {longest} of {name}")
    types = getattr(config, "layer_types", None)
    slides = "sliding_attention" in types if types else getattr(config, "model_type", "") == "mistral"
    window = getattr(config, "sliding_window", None)
    if slides and window is not None and window < max_length:
        raise ValueError(
            f"the torch engine cannot run {name}: its attention window is {window} tokens, shorter than the context of "
            f"{max_length}"
        )


def make_body(model: Any, max_length: int, *, fused: bool = True) -> "GeneralBody | FusedBody":
    """Return the fused body if it supports the model, else the general one."""
    return FusedBody(model, max_length) if fused and FusedBody.fits(model) else GeneralBody(model)


class GeneralBody:
    """Any transformers causal language model whose attention goes through its attention interface."""

    def __init__(self, model: Any) -> None:
        self._body = model.base_model

    def __call__(self, tokens: Tensor, positions: Tensor, cache: Pass | KernelPass) -> Tensor:
        assert not isinstance(cache, KernelPass), "transformers cannot call the kernel"
        return self._body(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=cache.mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state


class FusedBody:
    """A pre-norm decoder with rotary embeddings and a gated MLP.

    The model's parameters become views of the joined matrices, so weights copied to the model arrive here.
    """

    @staticmethod
    def fits(model: Any) -> bool:
        """Return whether this class supports the layers, rotary embedding and linear modules of the model."""
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        linears = [module for module in model.modules() if isinstance(module, nn.Linear | Nf4Linear)]
        return (
            config.model_type in FUSED_TYPES
            and rope.get("rope_type", "default") in STATIC_ROPE
            and all(type(module) in (nn.Linear, Nf4Linear) for module in linears)
        )

    def __init__(self, model: Any, max_length: int) -> None:
        body = model.base_model
        self._embedding = body.embed_tokens
        self._norm = _Norm(body.norm)
        weight = body.embed_tokens.weight
        operations = Operations.of(model)
        self._operations = operations
        self._layers = [_FusedLayer(layer, index, operations) for index, layer in enumerate(body.layers)]
        places = torch.arange(max_length, device=weight.device)[None]
        cosine, sine = body.rotary_emb(weight, position_ids=places)
        half = cosine.shape[-1] // 2
        # rotate_half(x) * sin = roll(x, half) * (-sin, sin), so the table holds the sign.
        self._cosine = cosine[0]
        self._sine = torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)

    @property
    def has_kernels(self) -> bool:
        """Whether this body accepts a KernelPass."""
        return self._operations.kernels is not None

    def __call__(self, tokens: Tensor, positions: Tensor, cache: Pass | KernelPass) -> Tensor:
        hidden = self._embedding(tokens.reshape(-1))
        change = None
        if isinstance(cache, KernelPass):
            rotary = Rotary(self._cosine, self._sine)
        else:
            shape = (*tokens.shape, 1, self._cosine.shape[-1])
            places = positions.reshape(-1)
            cosine = self._cosine.index_select(0, places).view(shape)
            sine = self._sine.index_select(0, places).view(shape)
            rotary = Rotary(cosine, sine)
        for layer in self._layers:
            change = layer(hidden, change, rotary, cache)
        return self._operations.add_norm(hidden, change, self._norm).view(*tokens.shape, -1)


class Rotary(NamedTuple):
    """Cosines and signed sines, as tables over all positions or for the positions of a pass."""

    cosine: Tensor
    sine: Tensor


class _FusedLayer:
    def __init__(self, layer: Any, index: int, operations: "Operations") -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        self._index = index
        self._scale = attention.scaling
        self._head_dim = attention.head_dim
        self._num_heads = attention.q_proj.out_features // attention.head_dim
        self._num_kv_heads = attention.k_proj.out_features // attention.head_dim
        self._before = _Norm(layer.input_layernorm)
        self._after = _Norm(layer.post_attention_layernorm)
        self._joined = _product(attention.q_proj, attention.k_proj, attention.v_proj)
        self._norms: tuple[_Norm, _Norm] | None = None
        if hasattr(attention, "q_norm"):
            self._norms = _Norm(attention.q_norm), _Norm(attention.k_norm)
        self._output = _product(attention.o_proj)
        self._gate_up = _product(mlp.gate_proj, mlp.up_proj)
        self._down = _product(mlp.down_proj)
        self._operations = operations

    def __call__(self, hidden: Tensor, change: Tensor | None, rotary: Rotary, cache: Pass | KernelPass) -> Tensor:
        """Add `change`, the previous layer's MLP output, to the hidden states in place; return this layer's MLP output.

        The next layer adds it, so that the sum and the norm after it can be one operation.
        """
        joined = self._joined(self._operations.add_norm(hidden, change, self._before))
        if isinstance(cache, KernelPass):
            attended = cache.attend(joined, rotary.cosine, rotary.sine, self._index, self._scale, self._norms)
        else:
            attended = self._attend(joined, rotary, cache)
        change = self._output(attended)
        gate_up = self._gate_up(self._operations.add_norm(hidden, change, self._after))
        return self._down(self._operations.gated(gate_up))

    def _attend(self, joined: Tensor, rotary: Rotary, cache: Pass) -> Tensor:
        num_rows, length = rotary.cosine.shape[:2]
        split = joined.view(num_rows, length, -1, self._head_dim)
        rotated, values = split.split((self._num_heads + self._num_kv_heads, self._num_kv_heads), dim=2)
        if self._norms is not None:
            parts = rotated.split((self._num_heads, self._num_kv_heads), dim=2)
            rotated = torch.cat([norm(part) for part, norm in zip(parts, self._norms, strict=True)], dim=2)
        rotated = torch.addcmul(rotated * rotary.cosine, rotated.roll(self._head_dim // 2, dims=-1), rotary.sine)
        query, keys = rotated.transpose(1, 2).split((self._num_heads, self._num_kv_heads), dim=1)
        attended = cache.attend(query, keys, values.transpose(1, 2), self._index, self._scale)
        return attended.reshape(num_rows * length, -1)


class Operations:
    """The operations of a layer between its matrix products, in torch or as Triton kernels."""

    def __init__(self, activation: Any, kernels: Any) -> None:
        self._activation = activation
        self.kernels = kernels

    @classmethod
    def of(cls, model: Any) -> "Operations":
        config = model.config
        activation = model.base_model.layers[0].mlp.act_fn
        attention = model.base_model.layers[0].self_attn
        if model.device.type != "cuda" or config.hidden_act != "silu":
            return cls(activation, None)
        from scalerl.training.rollout.torch import kernels

        return cls(activation, kernels if kernels.fits(attention.head_dim) else None)

    def add_norm(self, hidden: Tensor, change: Tensor | None, norm: "_Norm") -> Tensor:
        """Add `change` to `hidden` in place and return the normalised sum."""
        if self.kernels is not None:
            return self.kernels.add_norm(hidden, change, norm.weight, norm.variance_epsilon)
        if change is not None:
            hidden.add_(change)
        return norm(hidden)

    def gated(self, gate_up: Tensor) -> Tensor:
        """Return activation(gate) * up."""
        if self.kernels is not None:
            return self.kernels.gated(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return self._activation(gate).mul_(up)


def _product(*modules: Any) -> "_Product | _DecodedProduct | _AdaptedProduct":
    """Return one product for several linear layers with the same input."""
    layers = list(map(_without_adapter, modules))
    joined = _DecodedProduct(*layers) if isinstance(layers[0], Nf4Linear) else _Product(*layers)
    return joined if layers == [*modules] else _AdaptedProduct(joined, modules)


def _without_adapter(module: Any) -> Any:
    return module.base_layer if isinstance(module, AdaptedLinear) else module


class _AdaptedProduct:
    """A product to which adapters add their output in place: one product for all matrices A, and one for each B."""

    def __init__(self, joined: "_Product | _DecodedProduct", modules: Sequence[Any]) -> None:
        self._joined = joined
        self._sizes = [module.out_features for module in modules]
        self._adapters = {place: module for place, module in enumerate(modules) if isinstance(module, AdaptedLinear)}
        self._down = _Product(*(adapter.lora_A for adapter in self._adapters.values()))
        self._ranks = [adapter.lora_A.out_features for adapter in self._adapters.values()]

    def __call__(self, inputs: Tensor) -> Tensor:
        product = self._joined(inputs)
        parts = product.split(self._sizes, dim=-1)
        inner = self._down(inputs).split(self._ranks, dim=-1)
        for (place, adapter), low in zip(self._adapters.items(), inner, strict=True):
            if takes_fp32(low):
                parts[place].add_(fp32_linear(low, adapter.lora_B.weight), alpha=adapter.scale)
            else:
                parts[place].addmm_(low, adapter.lora_B.weight.T, alpha=adapter.scale)
        return product


class _DecodedProduct:
    """Several linear layers in 4 bits with the same input, decoded and computed as one matrix product."""

    def __init__(self, *layers: Nf4Linear) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        biases = [layer.bias.data for layer in layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None

    def __call__(self, inputs: Tensor) -> Tensor:
        weight = inputs.new_empty(sum(self._sizes), inputs.shape[-1])
        for layer, rows in zip(self._layers, weight.split(self._sizes), strict=True):
            layer.decoded(inputs.dtype, out=rows)
        product = fp32_linear if takes_fp32(inputs) else linear
        return product(inputs, weight, self._bias)


class _Product:
    """Several linear layers with the same input as one matrix product; their weights become views into one matrix."""

    def __init__(self, *modules: nn.Linear) -> None:
        weight = torch.cat([module.weight.data for module in modules])
        if weight.device.type == "cpu":
            # Column-major: on a CPU the library would reorder a row-major matrix for every product.
            weight = weight.T.contiguous().T
        sizes = [module.out_features for module in modules]
        for module, part in zip(modules, weight.split(sizes), strict=True):
            module.weight.data = part
        self._weight = weight.T
        self._bias = None
        self._takes_fp32 = takes_fp32(weight)
        if modules[0].bias is not None:
            self._bias = torch.cat([module.bias.data for module in modules])
            for module, part in zip(modules, self._bias.split(sizes), strict=True):
                module.bias.data = part

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._takes_fp32:
            return fp32_linear(inputs, self._weight.T, self._bias)
        return inputs @ self._weight if self._bias is None else torch.addmm(self._bias, inputs, self._weight)


class _Norm:
    """An RMS norm of the model."""

    def __init__(self, module: Any) -> None:
        self.weight = module.weight
        self.variance_epsilon = module.variance_epsilon
        self._epsilon = torch.full((1,), module.variance_epsilon)

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.device.type == "cpu" and hidden.dtype == torch.float32:
            # On a CPU, torch's RMS norm takes a dozen operations.
            size = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
            square = torch.addcmul(self._epsilon, size, size, value=1 / hidden.shape[-1])
            return torch.mul(hidden, self.weight).mul_(square.rsqrt_())
        return rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)
