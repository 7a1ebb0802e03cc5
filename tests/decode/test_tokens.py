"""Text and tokens: what the extra 'text' does, and what is said without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.api import _windowed
from mlc_deploy.decode.files import Beside, beside, model_of
from mlc_deploy.decode.tokens import Tokenizer, chat_text, load_tokenizer, until
from mlc_deploy.errors import DecodeError


class Bytes:
    """A tokenizer of bytes, as the package `tokenizers` has its own: a character may take several
    tokens, and a token's text depends on what is before it."""

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


def test_pieces_are_whole_characters() -> None:
    text = "naïve – 🙂 done"
    pieces = list(Tokenizer(Bytes()).texts(text.encode()))
    assert "".join(pieces) == text and "🙂" in pieces and "ï" in pieces
    cut = "🙂".encode()[:2]
    assert "".join(Tokenizer(Bytes()).texts(b"a" + cut)) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("pieces", "stops", "right"),
    [
        (["one ", "two", " three"], [], "one two three"),
        (["one ", "tw", "o three"], ["two"], "one "),
        (["one t", "wist"], ["two"], "one twist"),
        (["aa", "ab", "c"], ["aab"], "a"),
        (["a", "b", "c"], ["x", "bc", "c"], "a"),
        (["only the begi"], ["beginning"], "only the begi"),
    ],
)
def test_texts_that_end(pieces: list[str], stops: list[str], right: str) -> None:
    assert "".join(until(pieces, stops)) == right


def test_a_stop_is_held_back_until_it_is_none() -> None:
    given = until(iter(["a t", "w", "i"]), ["two"])
    assert [next(given), next(given)] == ["a ", "twi"]


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_a_chat_template() -> None:
    pytest.importorskip("jinja2")
    found = Beside(template=TEMPLATE, texts={"bos_token": "<s>"})
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert chat_text(found, messages) == "<s>[system]be brief[user]hi[assistant]"
    with pytest.raises(DecodeError) as caught:
        chat_text(Beside(template="{{ raise_exception('no system') }}"), messages)
    assert str(caught.value) == (
        "the chat template does not take these messages: no system\n  try: --no-chat"
    )
    with pytest.raises(DecodeError, match="does not take these messages: access to attribute"):
        chat_text(Beside(template="{{ messages.__class__.__mro__ }}"), messages)


def test_what_lies_beside_a_model(tmp_path: Path) -> None:
    inner = tmp_path / "onnx"
    inner.mkdir()
    model = inner / "model.onnx"
    model.touch()
    config = {"max_position_embeddings": 2048, "eos_token_id": 2, "model_type": "mistral",
              "sliding_window": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    chat = {"chat_template": TEMPLATE, "eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(chat))
    (tmp_path / "tokenizer.json").touch()
    assert model_of(tmp_path) == model
    found = beside(model)
    assert found == Beside(
        tokenizer=tmp_path / "tokenizer.json", length=2048, window=512, ends=frozenset({2, 7, 8}),
        template=TEMPLATE, texts={"eos_token": "</s>", "bos_token": "<s>"},
    )  # fmt: skip
    (tmp_path / "chat_template.jinja").write_text("other")
    assert beside(model).template == "other"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DecodeError) as caught:
        beside(model)
    assert str(caught.value).startswith("this is not JSON: Expecting property name")


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, None),
        ({"model_type": "gemma3", "sliding_window": 64,
          "layer_types": ["sliding_attention", "full_attention"]}, None),
        ({"model_type": "mistral", "sliding_window": 64,
          "layer_types": ["sliding_attention"] * 2}, 64),
        ({"model_type": "gemma2", "sliding_window": 64}, None),
        ({"model_type": "mistral", "sliding_window": None}, None),
    ],
)  # fmt: skip
def test_windows_of_all_layers(
    config: dict[str, object], window: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert beside(tmp_path / "model.onnx").window == window


@pytest.mark.parametrize(
    ("rows", "window", "fixed", "right"),
    [
        (512, None, False, (512, None)),
        (512, 8, False, (512, 8)),
        (512, 512, False, (543, 512)),
        (512, 4096, False, (512, None)),  # no text is that long
        (64, 40, True, (64, None)),
        (71, 40, True, (71, 40)),
        (8192, 4096, True, (8192, 4096)),
    ],
)
def test_rows_for_a_window(
    rows: int, window: int | None, fixed: bool, right: tuple[int, int | None]
) -> None:
    assert _windowed(rows, window, fixed) == right


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DecodeError) as caught:
        load_tokenizer(Beside(), tmp_path)
    assert str(caught.value) == (
        "text needs the package tokenizers, which is not installed\n"
        "  try: pip install 'mlc-deploy[text]'"
    )
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DecodeError) as caught:
        chat_text(Beside(template=TEMPLATE), [])
    assert str(caught.value) == (
        "a chat template needs the package jinja2, which is not installed\n"
        "  try: pip install 'mlc-deploy[text]'"
    )


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DecodeError) as caught:
        mlc.load_decoder(tmp_path, "host")
    assert str(caught.value) == (
        f"the folder holds no .onnx file and no .pt2 file\n  in:  {tmp_path}"
    )


@pytest.mark.decoders
def test_tokenizers_of_hugging_face(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs scripts/test --only decoders")
    own = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    own.train_from_iterator(["the cat sat on the mat"], trainer)
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", own.token_to_id("<s>"))]
    )
    own.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(beside(tmp_path / "model.onnx"), tmp_path)
    text = "the cat sat – 🙂"
    tokens = loaded.tokens(text)
    assert tokens[0] == loaded.token("<s>") and tokens[1:] == loaded.tokens(text, special=False)
    assert "".join(loaded.texts(tokens[1:])) == text and len(list(loaded.texts(tokens[1:]))) > 4
    with pytest.raises(DecodeError) as caught:
        load_tokenizer(Beside(), tmp_path / "model.onnx")
    assert str(caught.value) == (
        f"there is no tokenizer.json beside the model\n  in:  {tmp_path}/model.onnx\n"
        "  try: --tokenizer FILE or FOLDER with a tokenizer.json, or --prompt-ids 1,2,3"
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DecodeError, match="the tokenizer cannot be read: "):
        load_tokenizer(beside(tmp_path / "model.onnx"), tmp_path)
