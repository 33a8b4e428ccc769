"""Agent programs for tests of the endpoint, over HTTP alone. Texts are numbers, as in played.py."""

import asyncio
import http.client
import json
import os
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from scalerl.training.types import Problem

Message = dict[str, Any]


def ask(messages: Sequence[Message], *, key: str | None = None, path: str = "/v1/chat/completions", **body: Any) -> Any:
    """Return the status and the body of a call."""
    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY'] if key is None else key}"}
    connection.request("POST", path, json.dumps({"model": "policy", "messages": messages, **body}), headers)
    reply = connection.getresponse()
    status, text = reply.status, reply.read()
    connection.close()
    return status, json.loads(text)


def answered(messages: list[Message], **body: Any) -> str:
    """Call the model and append its answer, with a field that an SDK may add."""
    status, reply = ask(messages, **body)
    assert status == 200, reply
    message = reply["choices"][0]["message"]
    messages.append({**message, "refusal": None})
    return message["content"]


def talk(problem: Problem, *, turns: int = 3) -> float:
    """Extend one chat, turn by turn."""
    messages: list[Message] = [{"role": "user", "content": "1 2 3"}]
    for number in range(turns):
        answered(messages)
        messages.append({"role": "user", "content": [{"type": "text", "text": f"{number} 9"}]})
    return 1.0


async def talk_async(problem: Problem) -> str:
    return f"8 {await asyncio.to_thread(talk, problem)}"


def generated(token_ids: Sequence[int]) -> list[int]:
    """Call the model with tokens; return those of its answer."""
    status, reply = ask((), path="/inference/v1/generate", token_ids=token_ids, sampling_params={"max_tokens": 9})
    assert status == 200, reply
    (choice,) = reply["choices"]
    scored = [(each["token"], each["logprob"] <= 0) for each in choice["logprobs"]["content"]]
    assert scored == [(f"token_id:{token}", True) for token in choice["token_ids"]]
    return choice["token_ids"]


def by_tokens(problem: Problem) -> float:
    """Extend a conversation, begin again with another prompt, and then with a chat."""
    prompt = [1, 2, 3]
    for _ in range(2):
        prompt += [*generated(prompt), 9]
    generated([5, 6])
    answered([{"role": "user", "content": "1 2 3"}])
    return 1.0


def branch(problem: Problem) -> float:
    """Rewrite what was said, twice, as a program does that summarises its history."""
    first: list[Message] = [{"role": "user", "content": "1 2 3"}]
    answered(first)
    second: list[Message] = [{"role": "user", "content": "1 2 3 4"}]
    answered(second)
    changed: list[Message] = [*second[:-1], {**second[-1], "content": "5 5"}, {"role": "user", "content": "6"}]
    answered(changed)
    changed.append({"role": "user", "content": "7"})
    answered(changed)
    return 0.5


def in_parallel(problem: Problem) -> float:
    """Call twice at the same time."""
    chats: list[list[Message]] = [[{"role": "user", "content": f"{number} 2"}] for number in (1, 2)]
    threads = [threading.Thread(target=answered, args=(chat,)) for chat in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(all(chat[-1]["role"] == "assistant" for chat in chats))


def refused(problem: Problem) -> float:
    """Try what must not be answered."""
    messages = [{"role": "user", "content": "1"}]
    statuses = [ask(messages, key=key)[0] for key in ("", "another", "é")]
    statuses += [ask(messages, path="/v1/embeddings")[0], ask(messages, stream=True)[0], ask(messages, n=2)[0]]
    statuses += [ask([])[0], ask(["nonsense"])[0]]  # type: ignore[list-item]
    wrong: list[dict[str, Any]] = [{"token_ids": each} for each in ([], [True], [-1])]
    wrong += [{"token_ids": [1], "features": {"image": 1}}, {}]
    statuses += [ask([], path="/inference/v1/generate", **each)[0] for each in wrong]
    assert statuses == [401, 401, 401, 404, *[400] * 9], statuses
    answered(messages)
    return 1.0


def silent(problem: Problem) -> float:
    return 1.0


def broken(problem: Problem) -> float:
    answered([{"role": "user", "content": "1"}])
    raise RuntimeError("broken on purpose")


def chosen(problem: Problem) -> Any:
    """Run the program that the problem's answer names."""
    return globals()[problem.answer](problem)
