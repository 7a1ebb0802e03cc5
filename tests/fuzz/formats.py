"""The formats of tests/fuzz/files.py: valid files, how mutants are made of them, and who reads
them."""

from __future__ import annotations

import io
import json
import random
import tempfile
import wave
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from onnx import ModelProto, TensorProto, helper

from mlc_deploy import te
from mlc_deploy.artifact import load_model
from mlc_deploy.artifact.format import HEAD, MAGIC, VERSION, digest
from mlc_deploy.artifact.format import read_file as read_artifact
from mlc_deploy.cli.compare import read_record
from mlc_deploy.decode import strangers
from mlc_deploy.decode.files import beside
from mlc_deploy.decode.speech_files import speech_of
from mlc_deploy.decode.wav import read_wav
from mlc_deploy.errors import InputError
from mlc_deploy.files import npy
from mlc_deploy.files.fields import parsed
from mlc_deploy.files.limits import TEMPLATE_SECONDS, TOKENIZER_SECONDS
from mlc_deploy.frontend import from_onnx, from_tflite
from mlc_deploy.frontend.pt2 import data_of
from mlc_deploy.predict.calibration import Factors, from_json
from mlc_deploy.quantize.images import parse, read_image
from mlc_deploy.report.record import read_run
from mlc_deploy.tuned import Database
from mlc_targets import Target
from tests.artifact.models import digits
from tests.frontend import pt2_files
from tests.frontend.test_onnx_mutations import CHANGES, graphs, small_models
from tests.frontend.test_tflite_mutations import image_model, moves_model, signal_model
from tests.frontend.test_tflite_mutations import mutated as words_of
from tests.fuzz.files import Format
from tests.fuzz.mutators import bytes_of, json_of, mapping_of, png_of, tree_of, zip_of
from tests.predict import test_own_board as own_board
from tests.report.databases import tuned
from tests.report.records import record

# ----------------------------------------------------------------------------------- models


def onnx_mutant(data: bytes, rng: random.Random) -> bytes:
    """Other bytes, or another structure, or both."""
    if rng.random() < 0.5:
        model = ModelProto.FromString(data)
        for _ in range(rng.randint(1, 3)):
            try:
                rng.choice(CHANGES)(model, rng)
            except (IndexError, ValueError):  # it has no node, or no attribute, to change
                pass
        data = model.SerializeToString()
    return bytes_of(data, rng) if rng.random() < 0.6 else data


def onnx_seeds() -> list[bytes]:
    return [*small_models(), *(graph.SerializeToString() for graph in graphs())]


def tflite_mutant(data: bytes, rng: random.Random) -> bytes:
    return (bytes_of if rng.random() < 0.2 else words_of)(data, rng)


def external_seeds() -> list[bytes]:
    places: tuple[dict[str, Any], ...] = (
        {"location": "w.bin"}, {"location": "w.bin", "offset": 8, "length": 24},
        {"location": "./w.bin", "length": 24}, {"location": "../w.bin"}, {"location": "link"},
        {"location": "/etc/passwd"}, {"location": "out"},
    )  # fmt: skip
    return [json.dumps({"dims": [2, 3], "type": 1, "of": place}).encode() for place in places]


def read_external(path: Path) -> None:
    """A model that adds weights to x; the file's JSON says where they are."""
    folder = path.parent
    (folder / "w.bin").write_bytes(bytes(64))
    for name, to in (("link", "w.bin"), ("out", "/etc/passwd"), ("loop", "loop")):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)
    told = json.loads(path.read_bytes())
    tensor = TensorProto(name="w", data_location=TensorProto.EXTERNAL)
    try:
        tensor.dims.extend(told["dims"])
        tensor.data_type = told["type"]
        for key, value in told["of"].items():
            tensor.external_data.add(key=key, value=str(value))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError("no ONNX model says this") from None
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    from_onnx(file)


def external_mutant(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(tree_of(json.loads(data), rng)).encode()


@cache
def pt2_seeds() -> list[bytes]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in pt2_files.relu().items():
            archive.writestr("m/" + name, content)
    return [out.getvalue()]


def pt2_mutant(data: bytes, rng: random.Random) -> bytes:
    def inside(name: str, content: bytes, rng: random.Random) -> bytes:
        return json_of(content, rng) if name.endswith(".json") else bytes_of(content, rng)

    return zip_of(data, rng, inside)


@cache
def mlc_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [digits().save(Path(folder) / "digits.mlc").read_bytes()]


def mlc_mutant(data: bytes, rng: random.Random) -> bytes:
    """A manifest or an object of other content, with the hashes that it would have; or other
    bytes."""
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    size = int.from_bytes(data[12:16], "little")
    manifest = msgpack.unpackb(data[HEAD : HEAD + size])
    table = manifest["blobs"]
    blobs, at = [], HEAD + size
    for length, _, _ in table:
        at += -at % 4096
        blobs.append(data[at : at + length])
        at += length
    if rng.random() < 0.5:
        number = rng.randrange(len(blobs))
        blobs[number] = bytes_of(blobs[number], rng)
    else:
        manifest = mapping_of(manifest, rng)
    if isinstance(manifest, dict) and isinstance(manifest.get("blobs"), list):
        manifest["blobs"] = [[len(b), digest(b), zlib.crc32(b)] for b in blobs]
    try:
        packed: bytes = msgpack.packb(manifest)
    except (ValueError, TypeError, OverflowError):
        return bytes_of(data, rng)
    made = MAGIC + VERSION.to_bytes(4, "little") + len(packed).to_bytes(4, "little")
    made += digest(packed) + packed
    for blob in blobs:
        made += bytes(-len(made) % 4096) + blob
    return made


def read_mlc(path: Path) -> None:
    read_artifact(path)
    load_model(path)


# ----------------------------------------------------------------------------------- arrays


def npy_seeds() -> list[bytes]:
    arrays: tuple[Any, ...] = (
        np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 2, 3), np.int64),
        np.array(True), np.asfortranarray(np.ones((3, 4), np.float16)), np.array(["ab", "c"]),
        np.zeros(3, np.dtype([("a", "<f4"), ("b", "<i2", (2,))])),
    )  # fmt: skip
    return [_saved(array) for array in arrays]


def _saved(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz_seeds() -> list[bytes]:
    made = []
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, x=np.ones((2, 3), np.float32), label=np.arange(4))
        made.append(out.getvalue())
    return made


def npz_mutant(data: bytes, rng: random.Random) -> bytes:
    return zip_of(data, rng, lambda name, content, rng: bytes_of(content, rng))


def read_npy(path: Path) -> None:
    with npy.opened(path) as found:
        if isinstance(found, npy.Arrays):
            for name in found:
                found[name]


# ----------------------------------------------------------------------------------- sound, images


def wav_seeds() -> list[bytes]:
    made = []
    for channels, width, rate in ((1, 2, 16000), (2, 2, 16000), (1, 1, 16000), (1, 2, 8000)):
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setparams((channels, width, rate, 0, "NONE", ""))
            file.writeframes(bytes(range(240)) * channels)
        made.append(out.getvalue())
    return made


@cache
def image_seeds() -> list[bytes]:
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for mode, channels in (("RGB", 3), ("L", 1), ("RGBA", 4)):
        pixels = rng.integers(0, 255, (24, 20, channels), np.uint8).squeeze()
        image = Image.fromarray(pixels, mode)
        kinds = ["PNG", "BMP", "TIFF", "WEBP"] + (["JPEG"] if mode != "RGBA" else [])
        for kind in kinds:
            out = io.BytesIO()
            image.save(out, kind)
            made.append(out.getvalue())
    for options in ({"compression": "tiff_lzw"}, {"compression": "tiff_deflate"}):
        out = io.BytesIO()
        Image.new("RGB", (30, 30)).save(out, "TIFF", **options)
        made.append(out.getvalue())
    out = io.BytesIO()
    Image.new("P", (30, 30)).save(out, "PNG", interlace=1)
    return [*made, out.getvalue()]


HOW = parse("resize=16 crop=16 color=RGB layout=NCHW")


# --------------------------------------------------------------------------- beside decoders

CONFIG: dict[str, Any] = {
    "config.json": {
        "model_type": "whisper", "max_position_embeddings": 64, "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 2, "use_sliding_window": True, "num_mel_bins": 80,
        "max_source_positions": 50, "max_target_positions": 20, "decoder_start_token_id": 3,
        "eos_token_id": [1, 2], "text_config": {"n_positions": 9},
    },
    "generation_config.json": {
        "eos_token_id": 3, "lang_to_id": {"<|en|>": 5}, "task_to_id": {"transcribe": 7},
        "no_timestamps_token_id": 8, "suppress_tokens": [1, 2], "begin_suppress_tokens": [4],
    },
    "genai_config.json": {"model": {"context_length": 64, "eos_token_id": 2}},
    "preprocessor_config.json": {"sampling_rate": 16000, "hop_length": 160, "n_fft": 400},
    "tokenizer_config.json": {
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        "eos_token": {"content": "</s>"}, "bos_token": "<s>",
    },
}  # fmt: skip


def config_seeds() -> list[bytes]:
    plain = {**CONFIG["config.json"], "model_type": "mistral"}
    moonshine = {**CONFIG["config.json"], "model_type": "moonshine"}
    return [json.dumps({**CONFIG, "config.json": of}).encode()
            for of in (CONFIG["config.json"], plain, moonshine)]  # fmt: skip


def config_mutant(data: bytes, rng: random.Random) -> bytes:
    """One of the files with other values, or of other bytes, which are kept in a list."""
    files = json.loads(data)
    name = rng.choice(list(files))
    files[name] = list(json_of(json.dumps(files[name]).encode(), rng))
    return json.dumps(files).encode()


def read_config(path: Path) -> None:
    for name, content in json.loads(path.read_bytes()).items():
        raw = bytes(content) if isinstance(content, list) else json.dumps(content).encode()
        (path.parent / name).write_bytes(raw)
    beside(path.parent / "model.onnx")
    speech_of(path.parent)


TEMPLATES = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    "{% set n = namespace(x=0) %}{% for a in range(3) %}{% set n.x = n.x + a %}{% endfor %}",
    "{% macro f(x) %}{{ x * 3 }}{% endmacro %}{{ f('ab') }}{{ f(7) }}{{ messages | tojson }}",
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{{ '%d' % 3 }}",
)
PARTS = (
    "{{ 9 ** 9 ** 9 }}", "{% for a in range(99999) %}{% for b in range(99999) %}x",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 3 * 10 ** 9 }}",
    "{% endfor %}", "{{ 1 / 0 }}", "{{ messages.__class__ }}", "{{ x.y.z }}", "{{ [] | first }}",
    "{{ '%99999999d' % 3 }}", "{% macro g() %}{{ g() }}{% endmacro %}{{ g() }}", "{{ cycler() }}",
    "{{ lipsum(99999) }}", "{{ dict(messages) }}", "{{ ''.join(messages) }}",
    "{{ range(10 ** 10) | list }}",
    "{{ messages | map('upper') | list }}", "{{ 'x' | attr('format') }}", "{{ loop }}",
    "{% break %}",
    "{{ self }}", "{% block a %}{{ self.a() }}{% endblock %}", "{{ '{:>999999999}'.format(1) }}",
)  # fmt: skip


def template_mutant(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    if rng.random() < 0.6:
        data = data[:at] + rng.choice(PARTS).encode() + data[at:]
    return bytes_of(data, rng) if rng.random() < 0.7 else data


def read_template(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    messages = [{"role": "system", "content": "hi"}, {"role": "user", "content": " a\x1b[2J "}]
    strangers.chat(text, messages, {"bos_token": "<s>"})


@cache
def tokenizer_seeds() -> list[bytes]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {c: n for n, c in enumerate(["<unk>", "a", "b", "ab", "Ġa", " ", "c", "##c"])}
    bpe: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<s>", "</s>"])
    piece: Any = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    piece.normalizer = normalizers.BertNormalizer()
    piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    piece.post_processor = processors.TemplateProcessing(
        single="a $A b", special_tokens=[("a", 1), ("b", 2)]
    )
    unigram: Any = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁b", -2.0)], unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split("b", "isolated")]
    )
    unigram.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return [t.to_str().encode() for t in (bpe, piece, unigram)]


PATTERNS = (
    "(a+)+$",
    "(a|a)*$",
    "(",
    "a{9999}",
    r"(?<=a)b",
    r"\p{L}+",
    "(?:a*)*b",
    "",
    r"(a)\1{99}",
)


def tokenizer_mutant(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        value = json.loads(data)
        value[rng.choice(("pre_tokenizer", "normalizer", "decoder"))] = rng.choice((
            {"type": "Split", "pattern": {"Regex": rng.choice(PATTERNS)},
             "behavior": "Isolated", "invert": rng.random() < 0.5},
            {"type": "Replace", "pattern": {"Regex": rng.choice(PATTERNS)},
             "content": rng.choice(("", "a", "x" * 9999))},
            {"type": "Sequence", "pretokenizers": [], "normalizers": [], "decoders": []},
            {"type": "Precompiled", "precompiled_charsmap": rng.choice(("AAAA", "", "////8AAA"))},
        ))  # fmt: skip
        data = json.dumps(value).encode()
    return json_of(data, rng)


def read_tokenizer(path: Path) -> None:
    strangers._tokenizer.cache_clear()
    strangers.check(str(path))
    strangers.tokens(str(path), "a" * 30 + " ab c! 🙂", True)
    strangers.token(str(path), "<s>")
    strangers.text(str(path), [0, 1, 3, 2, 99999])


# --------------------------------------------------------------------------- ours, of others


def record_seeds() -> list[bytes]:
    return [json.dumps(record(timed)).encode() for timed in (False, True)]


def read_records(path: Path) -> None:
    try:
        read_run(path.read_bytes(), "record.json")
    finally:
        read_record(str(path))


@cache
def database_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        base = Database(Path(folder) / "tuned.db")
        base.add([tuned(3.0, n) for n in range(2)])
        a = te.placeholder((4,), "float32", "A")
        b = te.compute((4,), lambda i: a[i] + 1, "B")
        base.add_workload(te.create_prim_func([a, b]))
        return [(Path(folder) / "tuned.db").read_bytes()]


def database_mutant(data: bytes, rng: random.Random) -> bytes:
    """A line of other values, whose digest is right; or other bytes."""
    from mlc_deploy.tuned.database import _check, _line

    if rng.random() < 0.2:
        return bytes_of(data, rng)
    lines = data.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    body = json.loads(lines[number])
    body.pop("check")
    changed = tree_of(body, rng)
    if isinstance(changed, dict):
        try:
            lines[number] = _line(_check(changed), changed)
        except (ValueError, TypeError, UnicodeEncodeError, RecursionError):
            return bytes_of(data, rng)
    return b"".join(lines)


def read_database(path: Path) -> None:
    base = Database(path)
    for each in base.records:
        base.workload(each.workload)
    for name in list(base._workloads):
        base.workload(name)


def board_seeds() -> list[bytes]:
    return [
        b'# mine\n[kitchen]\nurl = "ssh://pi@pi.local"\ntarget = "raspberry-pi/4b-aarch64"\n',
        b'["a.b"]\nurl = "tcp://10.0.0.7:4444"\n\n[c]\nurl = """qemu://aarch64"""\n',
    ]


def read_boards(path: Path) -> None:
    from mlc_deploy.board import enrolled

    own = enrolled.boards_file
    try:
        enrolled.boards_file = lambda: path
        enrolled.enrolled_boards()
    finally:
        enrolled.boards_file = own


def calibration_seeds() -> list[bytes]:
    own = own_board.board(own_board.rows_on(own_board.known("cortex-a72"), Factors(1, 1, 1)))
    return [json.dumps(own.as_json()).encode()]


def read_calibrated(path: Path) -> None:
    try:
        from_json(parsed(path.read_bytes()).value)
    except ValueError as error:  # what the callers turn into words
        raise InputError(str(error)) from None


TARGETS = (
    "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -mattr=+dotprod,-sve -num-cores=4",
    '{"kind": "llvm", "mtriple": "armv7a-linux-gnueabihf", "mattr": ["+neon"], "num-cores": 2}',
    "raspberry-pi/4b-aarch64", "c -mcpu=cortex-m4", '{"tag": "raspberry-pi/5", "mcpu": "x"}',
)  # fmt: skip


def target_mutant(data: bytes, rng: random.Random) -> bytes:
    return json_of(data, rng) if data[:1] == b"{" else bytes_of(data, rng)


def read_target(path: Path) -> None:
    target = Target(path.read_bytes().decode(errors="replace"))
    assert Target(str(target)) == target


def read_image_file(path: Path) -> None:
    read_image(path, HOW)


# ----------------------------------------------------------------------------------- the table

FORMATS = (
    Format("onnx", onnx_seeds, onnx_mutant, from_onnx, ".onnx"),
    Format("external", external_seeds, external_mutant, read_external),
    Format("tflite", lambda: [image_model(), moves_model(), signal_model()], tflite_mutant,
           lambda path: from_tflite(path), ".tflite"),
    Format("pt2", pt2_seeds, pt2_mutant, data_of, ".pt2"),
    Format("mlc", mlc_seeds, mlc_mutant, read_mlc, ".mlc"),
    Format("npy", npy_seeds, bytes_of, read_npy, ".npy"),
    Format("npz", npz_seeds, npz_mutant, read_npy, ".npz"),
    Format("image", image_seeds, png_of, read_image_file, ".png"),
    Format("wav", wav_seeds, bytes_of, lambda path: read_wav(path, 16000), ".wav"),
    Format("config", config_seeds, config_mutant, read_config),
    Format("template", lambda: [t.encode() for t in TEMPLATES], template_mutant, read_template,
           confined=True, seconds=TEMPLATE_SECONDS.most),
    Format("tokenizer", tokenizer_seeds, tokenizer_mutant, read_tokenizer, ".json",
           confined=True, seconds=TOKENIZER_SECONDS.most),
    Format("record", record_seeds, json_of, read_records, ".json"),
    Format("database", database_seeds, database_mutant, read_database, ".db"),
    Format("boards", board_seeds, bytes_of, read_boards, ".toml"),
    Format("calibrated", calibration_seeds, json_of, read_calibrated, ".json"),
    Format("target", lambda: [t.encode() for t in TARGETS], target_mutant, read_target),
)  # fmt: skip
