"""vLLM behind the Engine protocol: paged cache, tensor parallelism, and every architecture that vLLM has.

VllmProcess (process)   the trainer's end; never imports vllm        child   its other end, in a process of its own
VllmEngine  (engine)    the engine itself, in the process that has vllm: the child, or a test
samplers, choice        our own sampling inside vLLM
worker, parcels         new weights and the FP32 head inside vLLM's workers; how weights get there
session                 the processes of a child and their files: how both are ended
spec, install, build    what an engine needs to start; whether vLLM is here; from a recipe's settings to an engine
check                   what an engine samples against the learner's log-probs, before a run uses it
"""
