"""The RL algorithm as pure functions: tensors in, tensors out; no settings objects, no IO.

Shapes. Tokens are packed: a per-token array is one flat vector ("tokens"), and an index gives the completion and group
of each token, so padding, packing and splits cannot change a number. Per-completion arrays are "completions". `trained`
marks the tokens that carry loss: sampled, part of a kept completion, and with a finite generator log-prob.
"""
