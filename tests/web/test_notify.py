import socket
import threading

import pytest
from webhook import webhook

from scalerl.errors import UsageError
from scalerl.web.notify import LONGEST, MOST_WAITING, Notifier, check_url, message


def unexpected(text: str) -> None:
    raise AssertionError(text)


def test_news_are_posted_in_order_under_the_name():
    with webhook() as chat, Notifier(chat.url, "first", warn=unexpected) as notifier:
        for number in range(3):
            notifier.send(f"news {number}")
        notifier.close()
        assert chat.texts == ["first: news 0", "first: news 1", "first: news 2"]


def test_chats_find_their_field_and_nobody_is_called():
    made = message("<!channel> a & b > @everyone")
    assert made["content"] == "<!channel> a & b > @everyone"
    assert made["text"] == "&lt;!channel&gt; a &amp; b &gt; @everyone"
    assert made["allowed_mentions"] == {"parse": []}
    assert len(message("x" * 5000)["content"]) == LONGEST


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_tried_again(status: int):
    with webhook(status, 204) as chat:
        with Notifier(chat.url, "run", warn=unexpected) as notifier:
            notifier.send("news")
        assert chat.texts == ["run: news"] * 2


@pytest.mark.parametrize("status", [404, 302])
def test_refusal_warns_once_without_the_url(status: int):
    warnings: list[str] = []
    with webhook(status) as chat:
        with Notifier(chat.url, "run", warn=warnings.append) as notifier:
            notifier.send("one")
            notifier.send("two")
        assert chat.texts == ["run: one", "run: two"]
    assert len(warnings) == 1
    assert "127.0.0.1" in warnings[0]
    assert "secret" not in warnings[0]


def test_secrets_stay_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUDGE_API_KEY", "from-the-environment")
    with webhook() as chat:
        with Notifier(chat.url, "run", warn=unexpected, secrets=["from-the-recipe"]) as notifier:
            notifier.send(f"{chat.url} from-the-environment from-the-recipe hf_{'a' * 20} password=hunter2hunter2")
        (text,) = chat.texts
    hidden = ("very-secret-part", "from-the", "hf_", "hunter2")
    assert not [secret for secret in hidden if secret in text]


@pytest.mark.parametrize(
    "error, words", [(ValueError("no disk"), "ValueError: no disk"), (KeyboardInterrupt(), "stop")]
)
def test_exception_that_ends_the_block_is_posted(error: BaseException, words: str):
    with webhook() as chat:
        with pytest.raises(type(error)), Notifier(chat.url, "run", warn=unexpected):
            raise error
        (text,) = chat.texts
    assert words in text


def test_server_that_never_answers_holds_nothing_up():
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        notifier = Notifier(f"http://127.0.0.1:{deaf.getsockname()[1]}/", "run", warn=unexpected, end_s=0.05)
        with notifier:
            for number in range(3 * MOST_WAITING):
                notifier.send(str(number))
        assert set(threading.enumerate()) - before, "the block did not wait until everything was posted"


def test_without_a_url_nothing_is_done():
    before = set(threading.enumerate())
    with Notifier(None, "run", warn=unexpected) as notifier:
        notifier.send("news")
        assert set(threading.enumerate()) == before


@pytest.mark.parametrize("url", ["hooks.slack.com/secret", "ftp://a/secret", "https:///secret", "http://a b/secret"])
def test_other_urls_are_refused_without_repeating_them(url: str):
    with pytest.raises(UsageError, match="--notify") as error:
        check_url(url, "--notify")
    assert "secret" not in str(error.value)
