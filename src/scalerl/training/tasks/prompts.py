"""Format a problem as a prompt, with the task's template and the chat template of the model's tokenizer.

Only prompts are formatted: whether two problems are equal, and so withheld from training, depends on their bare text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalerl.errors import PromptError

PLACE = "{prompt}"

Message = dict[str, str]
"""One turn of a chat: role and content."""

ChatTemplate = Callable[[Sequence[Message]], str]
"""Turns -> one text, which ends where the model's answer begins."""

# A name in braces is a placeholder, but after a letter, _, ^ or } it is LaTeX, as in \boxed{x}.
_FIELD = re.compile(r"(?<![\w\\^}])\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormat:
    """The text around every problem of a task."""

    template: str = PLACE
    """Text with {prompt} in place of the problem."""
    chat: bool = False
    """Whether the text is the user's turn in a chat, formatted by the tokenizer's chat template."""
    system: str = ""
    """The system prompt of the chat; empty for none."""
    tools: str = ""
    """The offered tools, as a JSON list of schemas; empty for none."""

    def __post_init__(self) -> None:
        if PLACE not in self.template:
            raise PromptError(f'template is "{self.template}" but must contain {PLACE}, where the problem goes')
        if others := [name for name in _FIELD.findall(self.template) if f"{{{name}}}" != PLACE]:
            raise PromptError(
                f"template contains {{{others[0]}}}, but only {PLACE} can be filled in: the fields of a file are "
                f"chosen by prompt_field and answer_field"
            )
        if self.system and not self.chat:
            raise PromptError(
                "system is set but chat is false: a system prompt is a turn of a chat, so set chat = true"
            )


def render(prompt: str | Sequence[Message], around: PromptFormat, chat_template: ChatTemplate | None = None) -> str:
    """Return the text of a prompt; `chat_template` is None if the tokenizer has none.

    In a chat of several turns, the template is applied to the last one, and a system turn of the chat takes precedence.
    """
    if not around.chat:
        if not isinstance(prompt, str):
            raise PromptError("a problem is a list of messages, but chat is false: set chat = true for this task")
        return around.template.replace(PLACE, prompt)
    if chat_template is None:
        raise PromptError(
            "chat is true, but the model's tokenizer has no chat template: set chat = false, or put a "
            "chat_template.jinja into the model's folder"
        )
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    turns[-1] = {**turns[-1], "content": around.template.replace(PLACE, turns[-1]["content"])}
    if around.system and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": around.system}, *turns]
    try:
        return chat_template(turns)
    # A chat template is a program that comes with the model; some reject a system prompt.
    except Exception as error:
        reason = " ".join(str(error).split())
        roles = " and ".join(f"a {turn['role']} turn" for turn in turns)
        raise PromptError(f"the model's chat template rejects {roles}: {reason}") from error
