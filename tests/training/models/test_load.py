import json
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_hub import COMMIT, fake_hub
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, MIXTURES, SIZES, VOCAB, random_model, tiny_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    PreTrainedTokenizerFast,
)

from scalerl.errors import ModelError, StoreError
from scalerl.training.models import template
from scalerl.training.models.load import head, hidden_states, load_config, load_model, save_model


def tiny_tokenizer(**special):
    vocab = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    words = Tokenizer(WordLevel(vocab, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, **({"eos_token": "<eos>"} | special))


def load(path, dtype=torch.float32, **others):
    return load_model(path, dtype=dtype, device="cpu", **others)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_loads_and_its_parts_give_its_logits(family, tmp_path):
    model = tiny_model(family)
    folder = save_model(model, tiny_tokenizer(), tmp_path / "deep" / "model")
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]

    loaded = load(folder, context=64)
    assert loaded.context == 64
    assert loaded.stop_tokens == (1,)
    assert loaded.tokenizer.decode([5]) == "w5"
    for (name, ours), theirs in zip(loaded.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    ids = torch.randint(2, VOCAB, (3, 7))
    parts = head(loaded.model)
    logits = torch.nn.functional.linear(hidden_states(loaded.model, ids), parts.weight, parts.bias)
    torch.testing.assert_close(logits, loaded.model(ids).logits)
    tied = loaded.model.get_input_embeddings().weight is parts.weight
    assert tied == bool(model.config.tie_word_embeddings)


def test_every_end_token_of_the_model_stops_a_completion(tmp_path):
    """In the asked precision, too."""
    model = tiny_model()
    model.generation_config.eos_token_id = [4, 1, 7, 10**14]
    folder = save_model(model, tiny_tokenizer(), tmp_path / "model")
    loaded = load(str(folder), dtype=torch.bfloat16)
    assert loaded.stop_tokens == (1, 4, 7)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}


def test_end_of_turn_token_stops_a_completion(tmp_path):
    template = "{% for m in messages %}w3 {{ m['content'] }} <end> w4{% endfor %}"
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    tokenizer.chat_template = template
    end = tokenizer.convert_tokens_to_ids("<end>")
    model = tiny_model()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    folder = save_model(model, tokenizer, tmp_path / "model")
    assert load(folder).stop_tokens == (1, end)
    # A template that ends a turn with plain text, or refuses the conversation, adds nothing.
    others = {
        "plain": template.replace("<end>", ""),
        "strict": "{{ raise_exception('no') }}",
        "include": "{% include 'other' %}",
    }
    for name, other in others.items():
        tokenizer.chat_template = other
        folder = save_model(model, tokenizer, tmp_path / name)
        assert load(folder).stop_tokens == (1,)


@contextmanager
def hub_in_place(tmp_path, monkeypatch, folder=None, **behaviour):
    """Take a hub of this machine for the real one, with an empty cache; yield what is asked of it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub(folder, **behaviour) as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield asked


@pytest.fixture
def silent_hub(tmp_path, monkeypatch):
    """A hub that hangs up."""
    with hub_in_place(tmp_path, monkeypatch) as asked:
        yield asked


def test_unreachable_hub_is_tried_once(silent_hub):
    with pytest.raises(ModelError, match=r"^model org/typo is not a folder here and cannot be downloaded"):
        load("org/typo")
    assert [line for line in silent_hub if "/models/" in line] == ["GET /api/models/org/typo/revision/main"]


def test_misspelt_name_of_an_embedded_model_is_recognised(silent_hub):
    with pytest.raises(ModelError, match=r'cannot be downloaded by that name: .*; did you mean "tiny-base"'):
        load("tiny-bas")


def test_downloaded_model_needs_no_hub(silent_hub, tmp_path):
    model = tmp_path / "cache" / "models--org--small"
    folder = save_model(tiny_model(), tiny_tokenizer(), model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    assert load("org/small").context == 64
    assert len([line for line in silent_hub if "/models/" in line]) == 1
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"this folder has no model.safetensors$"):
        load("org/small")


def test_offline_mode_does_not_contact_the_hub(silent_hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"^model org/typo is not a folder here and cannot be downloaded"):
        load("org/typo")
    assert silent_hub == []


def test_model_is_downloaded_from_a_slow_hub(tmp_path, monkeypatch):
    folder = save_model(tiny_model(), tiny_tokenizer(), tmp_path / "model")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights again, under Mistral's names")
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    with hub_in_place(tmp_path, monkeypatch, folder, first_answer_s=1.5) as asked:
        assert load("org/small").context == 64
    assert any(line.startswith("GET ") and line.endswith("/model.safetensors") for line in asked)
    assert not [line for line in asked if "consolidated" in line]


def test_nothing_is_overwritten_or_left_half_written(tmp_path, monkeypatch):
    folder = save_model(tiny_model(), tiny_tokenizer(), tmp_path / "model")
    before = json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="already exists and is not overwritten"):
        save_model(tiny_model("qwen2"), tiny_tokenizer(), folder)
    assert json.loads((folder / "config.json").read_text()) == before

    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    tokenizer = tiny_tokenizer()
    monkeypatch.setattr(tokenizer, "save_pretrained", full)
    with pytest.raises(StoreError, match=r"cannot write .*/other: the disk is full"):
        save_model(tiny_model(), tokenizer, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_llama_4_is_refused_by_name(tmp_path):
    from transformers import Llama4Config, Llama4TextConfig

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "vocab_size": 32}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size_mlp": 16}
    text = Llama4TextConfig(**sizes)
    Llama4Config(text_config=text.to_dict()).save_pretrained(tmp_path / "whole")
    text.save_pretrained(tmp_path / "text")
    with pytest.raises(ModelError, match=r"is a llama4 model, .*\(text_config\) and is not supported"):
        load_config(tmp_path / "whole")
    with pytest.raises(ModelError, match="is a llama4_text model with layers of chunked_attention"):
        load_config(tmp_path / "text")
    for name in ("whole", "text"):
        for file in ("model.safetensors", "tokenizer.json"):
            (tmp_path / name / file).write_bytes(b"")
        with pytest.raises(ModelError, match="is a llama4"):
            load(tmp_path / name)


def with_weights(change):
    def changed(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def without(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def made_a_run(folder):
    without("*")(folder)
    (folder / "recipe.json").write_text("{}")


def saved_again(config=None, **special):
    def saved(folder):
        without("*")(folder)
        folder.rmdir()
        model = tiny_model() if config is None else AutoModelForCausalLM.from_config(config)
        save_model(model, tiny_tokenizer(**special), folder)

    return saved


UP = "model.layers.1.mlp.up_proj.weight"
BROKEN = {
    f"its files have no weight {UP}$": with_weights(lambda weights: weights.pop(UP)),
    rf"its weight {UP} has shape \(23, 16\), but its config needs \(24, 16\)$": with_weights(
        lambda weights: weights.update({UP: weights[UP][:-1].clone()})
    ),
    "this folder is not a model: it has no config.json$": without("config.json"),
    "no config.json; it is a run: make a model with scalerl export .*/model --out MODEL": made_a_run,
    "this folder has no model.safetensors$": without("model.safetensors"),
    "only pickled weights, which are never loaded": lambda folder: (folder / "model.safetensors").rename(
        folder / "pytorch_model.bin"
    ),
    r"this folder has no tokenizer \(tokenizer.json\)": without("tokenizer*"),
    "model.safetensors is truncated or damaged: copy or download it again$": written("model.safetensors", b"cut"),
    "tokenizer.json is truncated or damaged: copy or download it again$": written("tokenizer.json", b'{"version'),
    "cannot be loaded: .*`nope`": written("config.json", b'{"model_type": "nope"}'),
    "cannot be loaded: unhashable": written("config.json", b'{"model_type": ["llama"]}'),
    "config.json is truncated or damaged": written("config.json", b'{"model_type": ' + b"[" * 900 + b"]" * 900 + b"}"),
    "is not that of a causal language model$": written("config.json", b'{"model_type": "t5"}'),
    r"its tokenizer has no end token \(eos_token\)": saved_again(eos_token=None),
    "its logits are not hidden states times head": saved_again(
        Gemma2Config(**SIZES, head_dim=4, final_logit_softcapping=0.01)
    ),
}


def with_config(**values):
    def changed(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return changed


def changed_mixture(folder):
    shutil.rmtree(folder)
    save_model(random_model(MIXTURES["qwen3_moe"]), tiny_tokenizer(), folder)
    with_config(num_experts_per_tok=10**7)(folder)


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS += "{% endfor %}"
HOSTILE = {
    "has 10,000,000 layers; at most 1,000 are read$": with_config(num_hidden_layers=10**7),
    "cannot be loaded: selected index k out of range$": changed_mixture,
    "its config says that it has -5 layers$": with_config(num_hidden_layers=-5),
    r"its files have a weight model.layers.1.input_layernorm.weight, but its config has fewer": with_config(
        num_hidden_layers=1
    ),
    r"config describes [0-9,]{13,} weights, but its files have [0-9,]+ bytes$": with_config(hidden_size=10**9),
    r"config describes [0-9,]{13,} weights, but its files have [0-9,]+ byte": with_config(vocab_size=10**9),
    r"config describes [0-9,]{13,} weights, but its files have [0-9,]+ byt": with_config(intermediate_size=10**9),
    "its config.json has [0-9,]+ bytes, which no model needs$": with_config(layer_types=["full_attention"] * 10**6),
    "chat template of .* takes more than 1 s for 2 turns: put a .* that ends": written(
        "chat_template.jinja", ENDLESS.encode()
    ),
    "chat template of .* needs more memory than there is for 2 turns": written(
        "chat_template.jinja", b"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"
    ),
    "chat template of .* makes 20,000,000 characters for 2 turns": written(
        "chat_template.jinja", b"{% for a in range(200) %}{{ 'x' * 100000 }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_hostile_model_is_refused_at_little_cost(sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(template, "_LIMIT_S", 1.0)
    folder = save_model(tiny_model(), tiny_tokenizer(), tmp_path / "model")
    HOSTILE[sentence](folder)
    began_s = time.process_time()
    began_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=sentence):
        load(folder)
    assert time.process_time() - began_s < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb < 10**6


def test_templates_of_any_thread_are_stopped(tmp_path, monkeypatch):
    """A prompt may be rendered by another thread than the main one, and other threads go on."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if messages|length > 1 %}" + ENDLESS + "{% endif %}{{ messages[0]['content'] }}"
    turn = {"role": "user", "content": "w2"}
    monkeypatch.setattr(template, "_LIMIT_S", 0.5)
    with ThreadPoolExecutor(2) as threads:
        endless = threads.submit(template.rendered, tokenizer, [turn, turn])
        assert template.rendered(tokenizer, [turn]) == "w2"
        with pytest.raises(ModelError, match="takes more than"):
            endless.result()
        assert threads.submit(template.rendered, tokenizer, [turn]).result() == "w2"


def test_one_thread_watches_all_templates(monkeypatch):
    """A data set has thousands of prompts."""
    monkeypatch.setattr(template, "_CHECK_S", 60.0)
    monkeypatch.setattr(template, "_WATCH", template._Watch())
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    before = threading.active_count()
    for _ in range(20):
        assert template.rendered(tokenizer, [{"role": "user", "content": "w2"}]) == "w2"
    assert threading.active_count() == before + 1


@pytest.mark.parametrize("sentence", BROKEN)
def test_what_is_wrong_with_a_folder_is_one_sentence(sentence, tmp_path):
    folder = save_model(tiny_model(), tiny_tokenizer(), tmp_path / "model")
    BROKEN[sentence](folder)
    with pytest.raises(ModelError, match=sentence) as error:
        load(folder)
    assert str(error.value).startswith(f"model {folder}")
    assert "\n" not in str(error.value)


def test_names_and_contexts_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name, sentence in {
        tmp_path / "nowhere": "/nowhere does not exist: give a model folder",
        tmp_path / "file": "/file is a file: give a model folder",
        "no such model!": r"^model no such model! is not a folder here and cannot be downloaded by that name: .*$",
    }.items():
        with pytest.raises(ModelError, match=sentence):
            load(name)
    folder = save_model(tiny_model(), tiny_tokenizer(), tmp_path / "model")
    with pytest.raises(ModelError, match="its context is 64 tokens, but 65 are needed"):
        load(folder, context=65)
