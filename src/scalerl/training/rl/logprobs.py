"""Log-probs and entropy of a language-model head, in FP32, without ever storing a tokens x vocabulary matrix.

    z = (h W^T + b) / temperature,   log p = z_y - logsumexp(z),   H = logsumexp(z) - sum_v p_v z_v

The head is computed in FP32 even under a bf16 body, without TF32 and outside autocast (ScaleRL paper, section 3 and
appendix A.19). Learner and generator must both do so; the generator uses `head_logits`. head_products.py has the
products and their precision. `fp32=False` is the ablation: the product h W^T + b in the dtype of the hidden states, the
rest in FP32.

Tokens are processed in chunks, forward and backward. The backward pass computes the logits again: 4 matrix products
instead of 3, so at best 75 % of the speed of the full computation where products dominate. On a GPU the operations
between the products are compiled into one pass over a chunk in each direction.

Both ends must use the same values of the head. Under fp32=True a generator with a bf16 copy and a learner with FP32
master weights have different heads, so one must be given the other's. Under fp32=False both round to the dtype of the
hidden states, so a master and its bf16 copy give the same logits.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.training.rl.head_products import PlainProducts, Products, SplitProducts

CHUNK = 1024
"""Tokens per chunk on a CPU; it has little effect on speed."""
GPU_CHUNK = 4096
"""Tokens per chunk on a GPU. Every chunk reads and writes the head's whole gradient, so small chunks are slow."""
GPU_CHUNK_LOGITS = 2**26
"""With a small vocabulary, chunks have more tokens, up to this many logits, so that kernel launches do not dominate."""

_PRECISION = threading.RLock()

_IMPOSSIBLE = -1e30
"""Replaces a logit of -inf (from a bias that excludes a token) before it is multiplied by its probability of 0."""


def log_probs_and_entropy(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    targets: Int[Tensor, " tokens"],
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: Float[Tensor, " vocab"] | None = None,
    fp32: bool = True,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """Return the log-prob of each target and the entropy of each distribution, in FP32 (float64 if an input is).

    Gradients flow through both outputs to hidden, head_weight (if it is tied, autograd adds the embedding's share) and
    bias; an entropy that no loss uses costs nothing in the backward pass. Temperature divides the logits, as in the
    generator. Pass only the positions that matter: every target must be in the vocabulary, and every token costs the
    same. This is a graph break under torch.compile, so that compiled and eager results are equal.

    fp32=False: weight and bias are rounded to hidden's dtype, and so are the logits. The gradient is that of autograd,
    with d/dz rounded to that dtype, but summed over chunks in FP32 and returned in head_weight's own dtype.
    """
    if chunk is None:
        chunk = max(GPU_CHUNK, GPU_CHUNK_LOGITS // head_weight.shape[0]) if hidden.is_cuda else CHUNK
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature must be > 0 and chunk >= 1, got {temperature} and {chunk}")
    return _eager(hidden, head_weight, bias, targets, temperature, chunk, fp32)


@torch.no_grad()
def head_logits(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab _"],
    *,
    temperature: float = 1.0,
    bias: Float[Tensor, " vocab"] | None = None,
    fp32: bool = True,
) -> Float[Tensor, "tokens vocab"]:
    """Return all logits in FP32 (fp32=False: after rounding), without gradient.

    This is for generators, which have one token per sequence. On a GPU, a generator with bf16 hidden states may pass
    `split_weight(head_weight)` instead of the weight, so that it is not split again for every token.
    """
    with exact_matmul(hidden.device):
        logits = _products(hidden, head_weight, bias, fp32).logits(hidden)
        return logits if temperature == 1 else logits.div_(temperature)


@contextmanager
def exact_matmul(device: torch.device) -> Iterator[None]:
    """Compute FP32 products in full FP32: no TF32 (CUDA), no bf16 (oneDNN under "medium"), no autocast.

    set_float32_matmul_precision("high") would otherwise silently turn an FP32 head into a TF32 one. The settings are
    restored afterwards. They are global, so a lock keeps threads from restoring each other's.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # pyright: ignore[reportAttributeAccessIssue]
    with _PRECISION, torch.autocast(device.type, enabled=False):
        before = [backend.fp32_precision for backend in backends]
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            yield
        finally:
            for backend, precision in zip(backends, before, strict=True):
                backend.fp32_precision = precision


class _HeadLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head_weight, bias, targets, temperature, chunk, fp32):
        # The dtype of all operations after the product.
        wide = torch.promote_types(_product_dtype(hidden, head_weight, bias, fp32), torch.float32)
        log_probs, entropy, log_total = hidden.new_empty(3, targets.numel(), dtype=wide)
        of_rows = _compiled(fused_statistics) if hidden.is_cuda else statistics
        with exact_matmul(hidden.device):
            products = _products(hidden, head_weight, bias, fp32)
            for rows in _chunks(targets.numel(), chunk):
                # Do not name the logits: they must be freed before those of the next chunk are allocated.
                log_probs[rows], entropy[rows], log_total[rows] = of_rows(
                    products.logits(hidden[rows]), targets[rows], temperature, bias is not None
                )
        ctx.save_for_backward(hidden, head_weight, bias, targets, entropy, log_total)
        ctx.temperature = temperature
        ctx.chunk = chunk
        ctx.fp32 = fp32
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_log_probs, grad_entropy = grad_outputs
        hidden, head_weight, bias, targets, entropy, log_total = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        wide = log_total.dtype
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # Sum over all chunks in FP32, and round to the weight's dtype once.
        grad_weight = torch.zeros_like(head_weight, dtype=wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if needs_bias else None
        # The gradient is linear in these two, so dividing them by the temperature saves a pass over each chunk.
        grad_log_probs = torch.zeros_like(log_total) if grad_log_probs is None else grad_log_probs / ctx.temperature
        grad_entropy = None if grad_entropy is None else grad_entropy / ctx.temperature
        of_rows = _compiled(fused_gradient_parts) if hidden.is_cuda else gradient_parts
        with exact_matmul(hidden.device):
            products = _products(hidden, head_weight, bias, ctx.fp32)
            for rows in _chunks(targets.numel(), ctx.chunk):
                parts = of_rows(
                    products,
                    products.logits(hidden[rows]),
                    targets[rows],
                    entropy[rows],
                    log_total[rows],
                    grad_log_probs[rows],
                    None if grad_entropy is None else grad_entropy[rows],
                    ctx.temperature,
                    bias is not None,
                )
                if grad_hidden is not None:
                    grad_hidden[rows] = products.hidden_gradient(parts).to(hidden.dtype)
                if grad_weight is not None:
                    products.add_weight_gradient(grad_weight, parts, hidden[rows])
                if grad_bias is not None:
                    for part in parts:
                        grad_bias.add_(part.sum(dim=0, dtype=wide))
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        grad_weight = None if grad_weight is None else grad_weight.to(head_weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


_eager: Callable[..., tuple[Tensor, Tensor]] = torch.compiler.disable(  # pyright: ignore[reportAssignmentType]
    _HeadLogProbs.apply
)


def statistics(logits: Tensor, targets: Tensor, temperature: float, biased: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the target's log-prob, the entropy and the logsumexp of each row.

    Overwrite `logits`, so that a chunk needs two buffers instead of four.
    """
    if temperature != 1:
        logits.div_(temperature)
    peak = logits.amax(dim=-1)
    logits.sub_(peak[:, None])
    target = logits.gather(1, targets[:, None].long()).squeeze(1)
    if biased:
        logits.clamp_(min=_IMPOSSIBLE)
    unnormalised = logits.exp()
    total = unnormalised.sum(dim=-1)
    mean_logit = logits.mul_(unnormalised).sum(dim=-1) / total
    log_total = total.log()
    return target - log_total, log_total - mean_logit, peak + log_total


def gradient_parts(
    products: Products,
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor,
    log_total: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
    biased: bool,
) -> tuple[Tensor, ...]:
    """Return d/dz of a chunk in the form for its products. Overwrite `logits`."""
    if temperature != 1:
        logits.div_(temperature)
    log_probs = logits.sub_(log_total[:, None])
    if biased:
        log_probs.clamp_(min=_IMPOSSIBLE)
    return products.parts(_logits_gradient(log_probs, targets, entropy, grad_log_prob, grad_entropy))


def _logits_gradient(
    log_probs: Tensor, targets: Tensor, entropy: Tensor, grad_log_prob: Tensor, grad_entropy: Tensor | None
) -> Tensor:
    """d/dz_v = g_logp (1[v = y] - p_v) - g_H p_v (log p_v + H), from the log-probs of a chunk, which it overwrites."""
    if grad_entropy is None:
        gradient = log_probs.exp_().mul_(-grad_log_prob[:, None])
    else:
        probs = log_probs.exp()
        scale = log_probs.add_(entropy[:, None]).mul_(-grad_entropy[:, None]).sub_(grad_log_prob[:, None])
        gradient = scale.mul_(probs)
    return gradient.scatter_add_(1, targets[:, None].long(), grad_log_prob[:, None])


@functools.cache
def _compiled(function: Callable) -> Callable:
    """Compile a function, once for full chunks and once for the last one; the size of the vocabulary is a constant."""
    return torch.compile(function)


def fused_statistics(
    logits: Tensor, targets: Tensor, temperature: float, biased: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The version of `statistics` for a compiler: it overwrites nothing and writes only three numbers per row."""
    logits = logits / temperature
    target = logits.gather(1, targets[:, None].long()).squeeze(1)
    log_total = logits.logsumexp(dim=-1)
    log_probs = logits - log_total[:, None]
    if biased:
        log_probs = log_probs.clamp(min=_IMPOSSIBLE)
    return target - log_total, -(log_probs.exp() * log_probs).sum(dim=-1), log_total


def fused_gradient_parts(
    products: Products,
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor,
    log_total: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
    biased: bool,
) -> tuple[Tensor, ...]:
    """The version of `gradient_parts` for a compiler."""
    log_probs = logits / temperature - log_total[:, None]
    if biased:
        log_probs = log_probs.clamp(min=_IMPOSSIBLE)
    scale = grad_log_prob[:, None]
    if grad_entropy is not None:
        scale = scale + grad_entropy[:, None] * (log_probs + entropy[:, None])
    of_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    gradient = torch.where(of_target, grad_log_prob[:, None], 0.0) - log_probs.exp() * scale
    return products.parts(gradient)


def _products(hidden: Tensor, head_weight: Tensor, bias: Tensor | None, fp32: bool) -> Products:
    dtype = _product_dtype(hidden, head_weight, bias, fp32)
    if _on_tensor_cores(hidden) and dtype == torch.float32:
        return SplitProducts(head_weight, bias, hidden.shape[1])
    return PlainProducts(head_weight, bias, dtype)


def _on_tensor_cores(hidden: Tensor) -> bool:
    return hidden.is_cuda and hidden.dtype == torch.bfloat16


def _chunks(num_tokens: int, chunk: int) -> Iterator[slice]:
    for start in range(0, num_tokens, chunk):
        yield slice(start, start + chunk)


def _product_dtype(hidden: Tensor, head_weight: Tensor, bias: Tensor | None, fp32: bool) -> torch.dtype:
    """Return the dtype of h W^T + b: that of the hidden states, or with fp32, FP32 (float64 if an input is)."""
    if not fp32:
        return hidden.dtype
    dtypes = {tensor.dtype for tensor in (hidden, head_weight, bias) if tensor is not None}
    return torch.float64 if torch.float64 in dtypes else torch.float32
