"""vLLM behind the Engine protocol: paged cache, tensor parallelism, and every architecture that vLLM supports.

VllmEngine (engine)   the engine itself, in the process that imports vllm: a generator, or a test
samplers, choice      our own sampling inside vLLM
worker                new weights and the FP32 head inside vLLM's workers
spec, install, build  the arguments of an engine; whether vLLM is installed; build generators from a recipe's settings
check                 compare an engine with the learner's log-probs before a run uses it

The trainer never imports vllm: each engine is in a child process, which may have its own Python environment.
"""
