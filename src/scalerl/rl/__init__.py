"""The recipe as pure functions: tensors in, tensors out, no settings objects, no IO.

Shapes. Tokens are packed: every per-token array is one flat vector ("tokens"), and an index says which completion (and
group) a token belongs to, so padding, packing and splits cannot change a number. Per-completion arrays are
"completions". `trained` marks the tokens that carry loss: sampled, of a kept completion, with a finite generator
log-prob.
"""
