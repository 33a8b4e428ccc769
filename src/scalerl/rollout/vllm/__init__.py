"""vLLM behind the Engine protocol: paged cache, tensor parallelism, and every architecture that vLLM has.

VllmEngine (engine)   the engine itself, in the process that has vllm: a generator's, or a test's
samplers, choice      our own sampling inside vLLM
worker                new weights and the FP32 head inside vLLM's workers
spec, install, build  what an engine needs to start; whether vLLM is here; from a recipe's settings to generators
check                 what an engine samples against the learner's log-probs, before a run uses it

The trainer never imports vllm: each engine is in a child process, which may have an environment of its own.
"""
