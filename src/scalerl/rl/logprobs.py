"""Log-probs and entropy of a language-model head, in FP32, without ever holding tokens x vocabulary.

    z = (h W^T + b) / temperature,   log p = z_y - logsumexp(z),   H = logsumexp(z) - sum_v p_v z_v

The head is computed in FP32 also under a bf16 body, without TF32 and outside autocast (ScaleRL paper, section 3 and
appendix A.19: it must be so on both sides; the generator uses `head_logits`). `fp32=False` is the arm without it: the
product h W^T + b in the dtype of the hidden states, the rest in FP32. The tokens go through in chunks, forward and
backward; the backward pass computes the logits again: 4 matrix products instead of 3, so at best 75 % of the speed of
the full computation where products dominate.

Either way both ends must hand in the same values of the head. A generator that holds a bf16 copy and a learner that
holds FP32 masters have different heads under fp32=True: give one the other's. Under fp32=False both round to the dtype
of the hidden states, so a master and its bf16 copy give the same logits.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1024
"""Tokens a chunk. Each one reads and writes the head's whole gradient, which smaller chunks make felt: on an H200,
128k x 4096, 512 reach 69 % of the full computation's speed and 1024 reach 73 % (benchmarks/logprob_memory.py). A CPU
is flat."""

_PRECISION = threading.RLock()

_IMPOSSIBLE = -1e30
"""Stands for a logit of -inf (a bias that rules a token out) where it is multiplied by its probability of 0."""


def log_probs_and_entropy(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    targets: Int[Tensor, " tokens"],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    bias: Float[Tensor, " vocab"] | None = None,
    fp32: bool = True,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """Log-prob of each target and entropy of each distribution, in FP32 (float64 if an input is).

    The gradient is exact for hidden, head_weight (a tied one gets its share by autograd) and bias, through both
    outputs; an entropy that enters no loss costs nothing in the backward pass. Temperature divides the logits, as in
    the generator. Pass only the positions that matter: every target must be in the vocabulary and every token costs
    the same. Under torch.compile this is a graph break, so that the compiled number is the eager one.

    fp32=False: weight and bias are rounded to hidden's dtype, and the logits come out in it; the gradient is that of
    autograd, with d/dz rounded to that dtype too, but summed over chunks in FP32 and in head_weight's own dtype.
    """
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature must be > 0 and chunk >= 1, got {temperature} and {chunk}")
    return _eager(hidden, head_weight, bias, targets, temperature, chunk, fp32)


@torch.no_grad()
def head_logits(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    *,
    temperature: float = 1.0,
    bias: Float[Tensor, " vocab"] | None = None,
    fp32: bool = True,
) -> Float[Tensor, "tokens vocab"]:
    """The same logits in full, in FP32 (fp32=False: rounded before), without gradient: for a generator, which has one
    token a sequence at a time."""
    with exact_matmul(hidden.device):
        dtype = _product_dtype(hidden, head_weight, bias, fp32)
        return _logits(hidden.to(dtype), head_weight.to(dtype), _cast(bias, dtype), temperature)


@contextmanager
def exact_matmul(device: torch.device) -> Iterator[None]:
    """FP32 products in full FP32: no TF32 (CUDA), no bf16 (oneDNN under "medium"), no autocast; restored after.

    set_float32_matmul_precision("high") would otherwise turn an FP32 head into a TF32 one without a word. The settings
    are of the process, so the lock keeps one thread from restoring them under another.
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
        dtype = _product_dtype(hidden, head_weight, bias, fp32)
        log_probs, entropy, log_total = hidden.new_empty(3, targets.numel(), dtype=_wide(dtype))
        with exact_matmul(hidden.device):
            weight, offset = head_weight.to(dtype), _cast(bias, dtype)
            for rows in _chunks(targets.numel(), chunk):
                logits = _logits(hidden[rows].to(dtype), weight, offset, temperature)
                log_probs[rows], entropy[rows], log_total[rows] = _statistics(logits, targets[rows], offset is not None)
        ctx.save_for_backward(hidden, head_weight, bias, targets, entropy, log_total)
        ctx.temperature, ctx.chunk, ctx.dtype = temperature, chunk, dtype
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_log_probs, grad_entropy = grad_outputs
        hidden, head_weight, bias, targets, entropy, log_total = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dtype, wide = ctx.dtype, log_total.dtype
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # One FP32 sum over all chunks, rounded to the weight's dtype once.
        grad_weight = torch.zeros_like(head_weight, dtype=wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if needs_bias else None
        # The gradient is linear in these two, so d z / d (h W^T + b) = 1 / temperature costs no pass over a chunk.
        grad_log_probs = torch.zeros_like(log_total) if grad_log_probs is None else grad_log_probs / ctx.temperature
        grad_entropy = None if grad_entropy is None else grad_entropy / ctx.temperature
        with exact_matmul(hidden.device):
            weight, offset = head_weight.to(dtype), _cast(bias, dtype)
            for rows in _chunks(targets.numel(), ctx.chunk):
                inputs = hidden[rows].to(dtype)
                log_probs = _logits(inputs, weight, offset, ctx.temperature).sub_(log_total[rows, None])
                grad_logits = _logits_gradient(
                    log_probs if offset is None else log_probs.clamp_(min=_IMPOSSIBLE),
                    targets[rows],
                    entropy[rows],
                    grad_log_probs[rows],
                    None if grad_entropy is None else grad_entropy[rows],
                ).to(dtype)
                if grad_hidden is not None:
                    grad_hidden[rows] = (grad_logits @ weight).to(hidden.dtype)
                if grad_weight is not None and dtype == wide:
                    grad_weight.addmm_(grad_logits.T, inputs)
                elif grad_weight is not None:
                    grad_weight.add_(grad_logits.T @ inputs)
                if grad_bias is not None:
                    grad_bias.add_(grad_logits.sum(dim=0, dtype=wide))
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, _cast(grad_weight, head_weight.dtype), grad_bias, None, None, None, None


_eager: Callable[..., tuple[Tensor, Tensor]] = torch.compiler.disable(  # pyright: ignore[reportAssignmentType]
    _HeadLogProbs.apply
)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """z = (h W^T + b) / temperature, FP32 from the product on, in a new buffer that the caller may overwrite."""
    product = torch.nn.functional.linear(hidden, weight, bias)
    logits = product.to(_wide(product.dtype))
    return logits if temperature == 1 else logits.div_(temperature)


def _statistics(logits: Tensor, targets: Tensor, biased: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the target, entropy and logsumexp of each row. Overwrites logits: two buffers a chunk, not four."""
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


def _chunks(num_tokens: int, chunk: int) -> Iterator[slice]:
    for start in range(0, num_tokens, chunk):
        yield slice(start, start + chunk)


def _product_dtype(hidden: Tensor, head_weight: Tensor, bias: Tensor | None, fp32: bool) -> torch.dtype:
    """The dtype of h W^T + b: the hidden states' own, or FP32 and float64 if an input is."""
    if not fp32:
        return hidden.dtype
    given = {tensor.dtype for tensor in (hidden, head_weight, bias) if tensor is not None}
    return torch.float64 if torch.float64 in given else torch.float32


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of all that follows the product."""
    return torch.promote_types(dtype, torch.float32)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)
