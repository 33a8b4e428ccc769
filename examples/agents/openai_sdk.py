"""An ordinary OpenAI SDK program as an environment: environment = {name = "harness", program = "openai_sdk:sure"}.

OPENAI_BASE_URL and OPENAI_API_KEY, which the SDK reads, lead to the model that trains.
"""

from typing import Any

from openai import OpenAI  # pyright: ignore[reportMissingImports]


def sure(problem: Any, *, rounds: int = 2, question: str = "Are you sure? Answer again.") -> str:
    """Ask the model whether it is sure, and return its last answer, which the task's graders read."""
    client, messages = OpenAI(), [{"role": "user", "content": problem.prompt}]
    for _ in range(rounds):
        reply = client.chat.completions.create(model="policy", messages=messages)  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        messages.append({"role": "user", "content": question})
    return messages[-2]["content"]
