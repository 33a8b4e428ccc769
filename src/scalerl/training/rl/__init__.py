"""The RL algorithm as pure functions: tensors in, tensors out; no settings objects, no IO.

Shapes: tokens are packed. A per-token array is one flat vector ("tokens"), and an index gives the completion and group
of each token, so that padding, packing and splits cannot change results. Per-completion arrays are "completions".
`trained` marks the tokens with a loss: sampled, part of a kept completion, and with a finite generator log-prob.
"""
