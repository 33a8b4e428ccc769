"""Models: load them from a folder, the hub or a GGUF file; adapters, shapes, and the small model that SFT builds."""
