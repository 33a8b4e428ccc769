"""The recipe: every setting of a run in one frozen value, read from TOML with `extends` and `--set key=value`.

Nothing here imports torch, so a wrong setting fails in a fraction of a second, before anything heavy is loaded.
"""
