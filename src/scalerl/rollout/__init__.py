"""Engines: they sample completions for requests, without knowing what the completions are used for.

requests, noise, sampling, progress    shared by all engines, independent of any of them
torch/                                 the embedded engine: continuous batching with torch in this process
fake                                   an engine without a model, for tests and simulations
"""
