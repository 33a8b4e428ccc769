"""vLLM in this process, behind the Engine protocol.

    requests -> waiting -> vLLM (scheduler, paged cache, model) -> our sampler -> tokens, one per step -> completions

vLLM schedules and computes. Sampling, the end of a completion and the version of each token are decided here, as for
every other engine. Requests wait here, not in vLLM, until a slot is free: a prompt is then computed with the weights of
the version with which its part of the prefix cache is marked.

On a GPU, vLLM prepares a step while it computes the one before. Steps end in the order in which they begin, so each is
marked with the version at its beginning; weights that arrive meanwhile are copied after it, on the same stream. Outputs
are taken from vLLM's core: building its objects for users takes as much time as its scheduler.

vLLM changes its process: it sets seeds, freezes the garbage collector and binds memory. Therefore training uses this
class only in a child process (build.py); only tests use it in their own process.
"""

import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.errors import EngineError, NonFiniteLogits, RecipeError
from scalerl.training.remote.weights import Unmapped
from scalerl.training.rollout.engine import EngineBase
from scalerl.training.rollout.progress import FREE, CompletionProgress
from scalerl.training.rollout.vllm.choice import KEY, NOT_FINITE, SamplerRequest
from scalerl.training.rollout.vllm.spec import EngineSpec, cpu_cache_bytes, engine_arguments
from scalerl.training.types import Completion, Request, Work


class _Running:
    """A request that vLLM is sampling."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.progress = CompletionProgress(request.length)
        self.stopped = False
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.experts: list[np.ndarray] = []
        """Experts as vLLM returns them: those of the prompt with the first token, then one token late."""
        self.num_cached = 0
        """Number of prompt tokens that vLLM found in its cache."""

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) >= self.progress.limit

    @property
    def work(self) -> Work:
        return Work.of(len(self.request.prompt_tokens), len(self.tokens), self.num_cached) if self.tokens else Work()

    def append(self, token: int, log_prob: float, version: int, stop_tokens: Sequence[int]) -> None:
        """Add a token and apply the length plan to it."""
        forced = self.progress.forced(len(self.tokens)) != FREE
        self.tokens.append(token)
        self.log_probs.append(0.0 if forced else log_prob)
        self.versions.append(version)
        self.stopped = not forced and token in stop_tokens
        self.progress.take(token)

    def completion(self) -> Completion:
        forced = np.array([self.progress.forced(index) != FREE for index in range(len(self.tokens))], dtype=np.bool_)
        return Completion(
            request=self.request,
            tokens=np.array(self.tokens, dtype=np.int32),
            log_probs=np.array(self.log_probs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            forced=forced,
            finish="stop" if self.stopped else "length",
            interrupted_at=int(forced.argmax()) if forced.any() else None,
            experts=np.concatenate(self.experts).reshape(-1, self.experts[0][0].size).astype(np.int16)
            if self.experts
            else None,
        )


@dataclass(slots=True)
class _Lane:
    """Requests that are served together; a pause puts them aside and uses a new lane."""

    waiting: deque[Request] = field(default_factory=deque)
    running: dict[str, _Running] = field(default_factory=dict)
    """Requests by vLLM's name for them."""
    early: list[Completion] = field(default_factory=list)
    """Completions that finished while a pause began; they are returned after it."""


class VllmEngine(EngineBase):
    """An Engine around vLLM, in this process."""

    opens_parcels = True
    """Every worker opens the weights itself (training/remote/weights.py)."""

    def __init__(self, spec: EngineSpec) -> None:
        """Load the model."""
        self._slots = spec.slots
        self._stop_tokens = spec.stop_tokens
        self._salted = spec.settings.prefix_caching
        self.vllm: Any = build_vllm(spec)
        self._tasks = self.vllm.get_supported_tasks()
        config = self.vllm.vllm_config
        self._batch_tokens = config.scheduler_config.max_num_batched_tokens
        text_config = config.model_config.hf_text_config
        super().__init__(
            "vLLM",
            max_length=spec.context,
            vocabulary=int(text_config.vocab_size),
            version=0,
            weights=spec.names,
        )
        self._tied = bool(getattr(text_config, "tie_word_embeddings", False))
        head_names = ["lm_head.weight", "model.embed_tokens.weight"] if self._tied else ["lm_head.weight"]
        fp32_head = spec.fp32_head and spec.dtype != "float32"
        self.vllm.collective_rpc("scalerl_prepare", args=(fp32_head, head_names))
        self._lanes = [_Lane()]
        """The last lane is served; one before it was put aside."""
        self._num_started = 0
        self._begun: deque[int] = deque()
        """Versions of the steps that have begun but not ended."""

    @property
    def num_pending(self) -> int:
        lane = self._lanes[-1]
        return len(lane.waiting) + len(lane.running) + len(lane.early)

    def _put_aside(self) -> tuple[list[Any], list[Any]]:
        """Remove all requests from vLLM's scheduler, which keeps their caches."""
        scheduler = self.core().scheduler
        (lane,) = self._lanes
        running = list(scheduler.running)
        waiting = list(scheduler.waiting)
        # vLLM's model runner keeps the state of requests that a step leaves out.
        scheduler.running.clear()
        scheduler.waiting.remove_requests(waiting)
        while self._begun:
            lane.early += self._take_outputs()
        self._lanes.append(_Lane())
        return running, waiting

    def _bring_back(self, held: tuple[list[Any], list[Any]]) -> None:
        if left := list(self._lanes[-1].running):
            self.vllm.engine_core.abort_requests(left)
        for name in left:
            self._drop(name)
        while self._begun:
            self._take_outputs()
        self._lanes.pop()
        scheduler = self.core().scheduler
        running, waiting = held
        scheduler.running.extend(each for each in running if each.request_id in self._lanes[-1].running)
        for each in waiting:
            scheduler.waiting.add_request(each)

    def core(self) -> Any:
        return self.vllm.engine_core.engine_core

    def _work(self, *, paused: bool) -> Work:
        running = (each for lane in self._lanes[int(paused) :][:1] for each in lane.running.values())
        return sum((each.work for each in running), self._done[paused])

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._lanes[-1].waiting.extend(requests)

    def _load(self, weights: Mapping[str, Tensor], version: int) -> None:
        with self._failing(f"vLLM cannot load the weights of version {version}"):
            faults = self.vllm.collective_rpc("scalerl_open", args=(weights,))
        # Raise before any worker has loaded weights: they will be sent again as a copy.
        if any(faults):
            raise Unmapped(next(filter(None, faults)))
        with self._failing(f"vLLM cannot load the weights of version {version}"):
            self.vllm.collective_rpc("scalerl_load", args=(self._tied,))

    def _drop_all(self) -> None:
        self._lanes = [_Lane()]
        del self.vllm

    def _advance(self) -> list[Completion]:
        """Sample one token of every running request; commands are executed between steps."""
        lane = self._lanes[-1]
        self._admit(lane)
        if lane.early:
            finished = lane.early
            lane.early = []
            return finished
        return self._take_outputs() if lane.running else []

    def _take_outputs(self) -> list[Completion]:
        """Let vLLM take a step, and return completions that finished in the step that ended."""
        core = self.core()
        sampled = self._lanes[-1].running
        queue = core.batch_queue
        num_begun = 0 if queue is None else len(queue)
        outputs, has_computed = core.step_fn()
        core.post_step(has_computed)
        num_ended = int(outputs is not None)
        if queue is None or len(queue) + num_ended > num_begun:
            self._begun.append(self._version)
        if outputs is None:
            return []
        version = self._begun.popleft()
        finished = []
        unfinished_in_vllm = []
        for output in outputs[0].outputs if outputs else ():
            running = sampled.get(output.request_id)
            if running is None:
                continue
            self._take(running, output, version)
            if running.finished:
                self._drop(output.request_id)
                finished.append(running.completion())
                if not output.finished:
                    unfinished_in_vllm.append(output.request_id)
            elif output.finished:
                raise EngineError(f"vLLM aborted request {running.request.key} ({output.finish_reason})")
        if unfinished_in_vllm:
            self.vllm.engine_core.abort_requests(unfinished_in_vllm)
        return finished

    def _admit(self, lane: _Lane) -> None:
        """Add as many requests to vLLM as it can start in this step."""
        room = self._batch_tokens - len(lane.running)
        while lane.waiting and len(lane.running) < self._slots:
            prompt = lane.waiting[0].prompt_tokens
            if len(prompt) > room and lane.running:
                break
            room -= len(prompt)
            request = lane.waiting.popleft()
            self._num_started += 1
            name = str(self._num_started)
            lane.running[name] = _Running(request)
            inputs: dict[str, Any] = {"prompt_token_ids": list(prompt)}
            if self._salted:
                # The prefix cache must not return keys and values of other weights for the same prompt.
                inputs["cache_salt"] = f"v{self._version}"
            asked = self.vllm.input_processor.process_inputs(
                name, inputs, _sampling_params(request), supported_tasks=self._tasks
            )
            self.vllm.engine_core.add_request(asked)

    def _drop(self, name: str) -> None:
        """Remove a request that is no longer sampled; its work remains counted."""
        running = self._lanes[-1].running.pop(name)
        self._done[self._is_paused] += running.work

    def _take(self, running: _Running, output: Any, version: int) -> None:
        if not running.tokens and output.prefill_stats:
            running.num_cached = output.prefill_stats.num_cached_tokens
        if output.routed_experts is not None:
            running.experts.append(output.routed_experts)
        log_probs = output.new_logprobs.logprobs[:, 0].tolist() if output.new_token_ids else ()
        for token, log_prob in zip(output.new_token_ids, log_probs, strict=True):
            if log_prob == NOT_FINITE:
                raise NonFiniteLogits(token=len(running.tokens), request=running.request.key, version=version)
            running.append(token, log_prob, version, self._stop_tokens)


def _sampling_params(request: Request) -> Any:
    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]

    # Our sampler applies the temperature and leaves one token; vLLM finds it fastest by greedy sampling.
    return SamplingParams(
        max_tokens=request.length.max_tokens,
        temperature=0.0,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        extra_args={KEY: SamplerRequest.of(request)},
    )


def build_vllm(spec: EngineSpec) -> Any:
    """Return vLLM's engine, with our sampler in its first model runner."""
    from transformers import AutoConfig
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(spec.config, encoding="utf-8")
        text_config = AutoConfig.from_pretrained(folder).get_text_config()
        cache_bytes = None
        if not spec.on_gpu:
            cache_bytes = cpu_cache_bytes(text_config, spec.slots, spec.context, getattr(torch, spec.dtype))
        try:
            arguments = engine_arguments(spec, folder=folder, cache_bytes=cache_bytes)
            config = EngineArgs(**arguments).create_engine_config()
        except (TypeError, ValueError) as error:
            # pydantic's message ends with the whole input and a link.
            text = " ".join(str(error).partition(" [type=")[0].split())
            raise RecipeError(f"vLLM refuses its arguments (rollout.vllm): {text}") from error
        if getattr(config, "use_v2_model_runner", False):
            raise RecipeError(
                "vLLM uses its second model runner, which does not support our sampler: unset VLLM_USE_V2_MODEL_RUNNER,"
                " or install a version of vLLM that still has the first"
            )
        # It runs its core in this process: a separate one might survive if this process is killed.
        engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
    # vLLM's finalizer, if any, would end the process groups of all other engines in this process.
    if (finalizer := getattr(engine.engine_core, "_finalizer", None)) is not None:
        finalizer.detach()
    return engine
