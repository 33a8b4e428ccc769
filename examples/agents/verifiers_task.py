"""A task and a harness of verifiers 0.4: task.environment = {name = "harness", program = "verifiers_task:play"}.

They know nothing of the trainer. A client of verifiers relays the chats of the harness to the endpoint that
OPENAI_BASE_URL names, and the task's own rewards are the conversation's. With the folder of a tokenizer (tokenizer =
"models/mine" in the same table) verifiers writes the prompts itself, and sends tokens.
"""

import os
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

__all__ = ["AskTwice"]


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(str(trace.branches[-1].messages[-1].content).strip() == self.data.answer)


class AskTwiceConfig(vf.HarnessConfig):
    id: str = "verifiers_task"
    question: str = "Are you sure? Answer again."


class AskTwice(vf.Harness[AskTwiceConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        messages: Any = [{"role": "user", "content": data.prompt}]
        for _ in range(2):
            reply = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            messages.append({"role": "user", "content": self.config.question})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def play(problem: Any, *, question: str = "Are you sure? Answer again.", tokenizer: str = "") -> float:
    """Run the task once."""
    place: Any = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key_var": "OPENAI_API_KEY"}
    client = vf.TrainClientConfig(**place, renderer_model_name=tokenizer) if tokenizer else vf.EvalClientConfig(**place)
    harness: Any = {"id": "verifiers_task", "question": question}
    config = vf.AgentConfig(harness=harness, model="policy", client=client, runtime=vf.SubprocessConfig())
    trace = await vf.Agent(config).run(SumTask(Sum(prompt=problem.prompt, answer=problem.answer)))
    if not trace.ok:
        raise RuntimeError(f"verifiers reports {trace.last_error}")
    return trace.reward
