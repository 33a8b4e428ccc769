"""The embedded engine: continuous batching in PyTorch, on CPU or GPU."""
