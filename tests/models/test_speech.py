"""Speech models of transformers, small and of random weights, on boards: the same tokens."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

import mlc_deploy as mlc
from tests.cli.command import Command
from tests.cli.conftest import mlc_deploy
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local", "mlc_deploy"]  # fixtures

pytestmark = [
    pytest.mark.decoders,
    pytest.mark.filterwarnings("ignore"),  # of the exporters
]

RATE, SECONDS, COUNT = 16000, 1, 24
LANGUAGES, TASKS = {"<|de|>": 4, "<|en|>": 5}, {"transcribe": 6, "translate": 7}
PLAIN = 8  # the token that says that no times are told
SILENT, LATE = [11, 12, 13], [14, 2]
SIZES: dict[str, Any] = {
    "vocab_size": 120, "num_mel_bins": 80, "encoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_layers": 3, "decoder_attention_heads": 4, "d_model": 32, "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 48, "max_source_positions": 50, "max_target_positions": 48,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


def built() -> Any:
    """A model whose texts do not repeat from their beginning on, of two languages."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    config = transformers.WhisperConfig(
        **SIZES, suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager"
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1 and "embed" not in name:
                weights.mul_(10)
            elif "embed" in name:
                weights.mul_(20)
            elif name.endswith("bias"):
                weights.normal_(0, 0.1)
    own = model.generation_config
    own.lang_to_id, own.task_to_id, own.is_multilingual = LANGUAGES, TASKS, True
    own.no_timestamps_token_id, own.return_timestamps = PLAIN, False
    own.suppress_tokens, own.begin_suppress_tokens = SILENT, LATE
    own.max_length = SIZES["max_target_positions"]
    return model


def sound(seed: int = 0, seconds: float = SECONDS) -> np.ndarray:
    random, time = np.random.default_rng(seed), np.arange(int(RATE * seconds)) / RATE
    tones = sum(np.sin(2 * np.pi * f * time) for f in random.uniform(100, 3000, 4))
    made = 0.15 * tones * np.sin(7 * time + seed) + random.normal(0, 0.01, len(time))
    samples: np.ndarray = np.round(made.clip(-1, 1) * 32767) / 32768
    return samples


def to_wav(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32768).astype("<i2").tobytes())
    return path


def by_transformers(model: Any, samples: np.ndarray, **options: Any) -> list[int]:
    """The tokens behind those that begin a text, by greedy generate."""
    import torch
    from transformers import WhisperFeatureExtractor

    extract = WhisperFeatureExtractor(chunk_length=SECONDS)
    features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
    with torch.no_grad():
        found = model.generate(
            features.float(), max_new_tokens=COUNT, do_sample=False, num_beams=1, **options
        )
    begun = {1, PLAIN, *LANGUAGES.values(), *TASKS.values()}
    tokens = [int(t) for t in found[0]]
    while tokens and tokens[0] in begun:
        tokens.pop(0)
    return tokens[: tokens.index(2)] if 2 in tokens else tokens


@pytest.fixture(scope="module")
def model() -> Any:
    return built()


@pytest.fixture(scope="module")
def transcriber(model: Any) -> mlc.Transcriber:
    return mlc.load_transcriber(model, "host")


def test_a_module_of_transformers(
    model: Any, transcriber: mlc.Transcriber, local: Session, tmp_path: Path
) -> None:
    """Of one language, which is said or found out, and of two windows."""
    for seed, language in enumerate((None, "de", "en")):
        right = by_transformers(model, sound(seed), language=language, task="transcribe")
        assert len(set(right)) >= 3
        heard = mlc.transcribe(transcriber, sound(seed), local, language=language, tokens=COUNT)
        assert list(heard) == right == heard.tokens
        summary = heard.summary
        assert summary.sound_s == SECONDS and summary.tokens == len(right)
        assert summary.hear_s > 0 and summary.decode_s > 0
    both = np.concatenate([sound(0), sound(1)])
    file = to_wav(tmp_path / "both.wav", both)
    every = mlc.transcribe(transcriber, file, local, language="en", tokens=COUNT)
    parts = [by_transformers(model, sound(seed), language="en") for seed in (0, 1)]
    assert list(every) == [*parts[0], *parts[1]]
    english = mlc.transcribe(
        transcriber, sound(2), local, language="de", task="translate", tokens=COUNT
    )
    assert list(english) == by_transformers(model, sound(2), language="de", task="translate")


def test_what_was_heard_is_kept_in_place(transcriber: mlc.Transcriber) -> None:
    """No step but the first runs the encoder, and none copies a cache."""
    assert isinstance(transcriber.model, mlc.CompiledModel)
    program = transcriber.model.program
    heads, rows, width = 4, SIZES["max_source_positions"], 8
    for call in program.calls:
        if call.kernel.startswith("copy"):
            assert all(place.size < heads * rows * width * 4 for place in call.args)
    states = [p for p in transcriber.model.metadata.model.outputs if p.state]  # type: ignore[union-attr]
    assert sum(tuple(p.shape) == (1, heads, rows, width) for p in states) == 6


def spectra() -> Any:
    """What Whisper's encoder takes."""
    import torch

    return torch.zeros(1, SIZES["num_mel_bins"], 2 * SIZES["max_source_positions"])


def exported(model: Any, folder: Path, merged: bool, heard: Any, is_open: bool = False) -> Path:
    """The files of optimum: an encoder, a decoder of first steps, and one of later steps, which is
    in one file with the first where merged. heard: an example of what the encoder takes, whose last
    dimension may be open."""
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    folder.mkdir()
    config = model.config
    layers, heads, past = len(model.model.decoder.layers), config.num_attention_heads, 5
    width = config.hidden_size // heads

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, heard: Any) -> Any:
            return self.model.model.encoder(heard).last_hidden_state

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, encoder_hidden_states: Any, past: Any = None) -> Any:
            pairs = [(past[n], past[n + 1]) for n in range(0, len(past or ()), 2)]
            cache = EncoderDecoderCache(DynamicCache(pairs[0::2]), DynamicCache(pairs[1::2]))
            done = self.model.model.decoder(
                input_ids=input_ids, encoder_hidden_states=encoder_hidden_states,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            own, heard = cache.self_attention_cache, cache.cross_attention_cache
            present = [x for a, b in zip(own.layers, heard.layers, strict=True)
                       for x in (a.keys, a.values, b.keys, b.values)]  # fmt: skip
            return (self.model.proj_out(done.last_hidden_state), *present)

    every = [f"{n}.{part}.{kind}" for n in range(layers) for part in ("decoder", "encoder")
             for kind in ("key", "value")]  # fmt: skip
    outputs = ["logits", *(f"present.{name}" for name in every)]
    options: dict[str, Any] = {"dynamo": True, "opset_version": 18, "external_data": False,
                               "verbose": False}  # fmt: skip
    with torch.no_grad():
        states = Encoder()(heard)
    rows = states.shape[1]
    size = torch.export.Dim("sound", min=1279, max=40000)  # as many as give two rows
    encoder = torch.export.export(
        Encoder(), (heard,), strict=False, prefer_deferred_runtime_asserts_over_guards=True,
        dynamic_shapes=({heard.dim() - 1: size} if is_open else {},),
    )  # fmt: skip
    torch.onnx.export(
        encoder, (), str(folder / "encoder_model.onnx"), input_names=[model.main_input_name],
        output_names=["last_hidden_state"], **options,
    )  # fmt: skip
    ids = torch.zeros(1, 3, dtype=torch.long)
    of_sound = {1: "rows"} if is_open else {}
    torch.onnx.export(
        Decoder(), (ids, states), str(folder / "decoder_model.onnx"),
        input_names=["input_ids", "encoder_hidden_states"], output_names=outputs,
        dynamic_shapes=({1: "sequence"}, of_sound), **options,
    )  # fmt: skip
    before = [torch.zeros(1, heads, rows if ".encoder." in name else past, width) for name in every]
    sizes = [({2: "rows"} if is_open else {}) if ".encoder." in name else {2: "past"}
             for name in every]  # fmt: skip
    torch.onnx.export(
        Decoder(), (ids, states, before), str(folder / "decoder_with_past_model.onnx"),
        input_names=["input_ids", "encoder_hidden_states",
                     *(f"past_key_values.{name}" for name in every)],
        output_names=outputs, dynamic_shapes=({1: "sequence"}, of_sound, sizes), **options,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    (folder / "generation_config.json").write_text(json.dumps(model.generation_config.to_dict()))
    if merged:
        merge(folder)
    return folder


def merge(folder: Path) -> None:
    """One file of both decoders, which `use_cache_branch` chooses from, as optimum merges them."""
    first, later = (onnx.load(folder / f"{name}.onnx")
                    for name in ("decoder_model", "decoder_with_past_model"))  # fmt: skip
    inputs = [onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])]
    inputs += later.graph.input
    branches = []
    for prefix, own in (("first_", first), ("later_", later)):
        given = {i.name for i in own.graph.input}
        for node in own.graph.node:
            node.name = prefix + node.name
            node.input[:] = [n if n in given or not n else prefix + n for n in node.input]
            node.output[:] = [prefix + n for n in node.output]
        weights = [*own.graph.initializer]
        for weight in weights:
            weight.name = prefix + weight.name
        outs = [onnx.helper.make_empty_tensor_value_info(prefix + o.name) for o in own.graph.output]
        nodes = [*own.graph.node]
        branches.append(onnx.helper.make_graph(nodes, prefix, [], outs, weights))
    names = [o.name for o in later.graph.output]
    choice = onnx.helper.make_node(
        "If", ["use_cache_branch"], names, then_branch=branches[1], else_branch=branches[0]
    )
    graph = onnx.helper.make_graph([choice], "merged", inputs, [*later.graph.output])
    model = onnx.helper.make_model(graph, opset_imports=later.opset_import, ir_version=10)
    onnx.save(model, folder / "decoder_model_merged.onnx")
    (folder / "decoder_model.onnx").unlink()
    (folder / "decoder_with_past_model.onnx").unlink()


@pytest.mark.parametrize("merged", [False, True], ids=["apart", "merged"])
def test_files_of_optimum(
    merged: bool, model: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = "armv7" if merged else "aarch64"
    board = board_named(request, name)
    folder = exported(model, tmp_path / "whisper", merged, spectra())
    right = by_transformers(model, sound(1), language="de")
    heard = mlc.transcribe(
        folder, sound(1), board, language="de", tokens=COUNT, target=TARGETS[name]
    )
    assert list(heard) == right
    assert heard.summary.instructions


def test_the_command(model: Any, tmp_path: Path, mlc_deploy: Command) -> None:
    folder = exported(model, tmp_path / "whisper", True, spectra())
    to_wav(tmp_path / "said.wav", sound(2))
    tokenizer = {
        "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "unk_token": "w0",
                  "vocab": {f"w{n}": n for n in range(120)}},
    }  # fmt: skip
    right = by_transformers(model, sound(2), language="en")
    options = ["--audio", str(tmp_path / "said.wav"), "--board", "local://"]
    options += ["--tokens", str(COUNT), "--language", "en"]
    saved = folder / "tiny.mlc"
    first = mlc_deploy("transcribe", folder, *options, "--save", saved)
    assert (first.status, first.stdout) == (0, f"{', '.join(map(str, right))}\n"), first.stderr
    assert " audio     1 s, encoded in " in first.stderr
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    again = mlc_deploy("transcribe", saved, *options)
    assert again.stdout == f"{''.join(f'w{token}' for token in right)}\n", again.stderr
