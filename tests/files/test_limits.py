"""What files from outside may cost: each limit is held, and the threat model's table names it."""

from __future__ import annotations

import json
import re
import resource
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlc_deploy.decode.files import Beside, beside
from mlc_deploy.decode.speech_files import speech_of
from mlc_deploy.decode.tokens import Confinement, chat_text
from mlc_deploy.decode.wav import read_wav
from mlc_deploy.errors import DecodeError, GraphError, ImporterError, InputError, TuneError
from mlc_deploy.files import limits, npy
from mlc_deploy.files.limits import READERS, Limit
from mlc_deploy.frontend import from_onnx, from_tflite
from mlc_deploy.graph import BlockBuilder, evaluate
from mlc_deploy.quantize.images import parse, read_image
from mlc_deploy.tuned import Database
from tests.tflite_models import Model

ROOT = Path(__file__).parents[2]
HOST = ROOT / "host" / "mlc_deploy"
USER = [{"role": "user", "content": "hi"}]


def said(error: type[Exception], work: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        work()
    return str(caught.value)


# ------------------------------------------------------------------------------------ the table


def test_the_threat_model_has_every_reader() -> None:
    page = (ROOT / "docs" / "explanation" / "threat_model.md").read_text()
    table = "\n".join(limits.table())
    assert table in page, f"docs/explanation/threat_model.md lacks this table:\n{table}"


def test_every_limit_is_in_the_table_and_in_use() -> None:
    named = {name: found for name, found in vars(limits).items() if isinstance(found, Limit)}
    assert all(limit.most > 0 and limit.why and limit.of for limit in named.values())
    listed = [limit for reader in READERS for limit in reader.limits]
    assert all(limit in listed for limit in named.values())
    others = (file.read_text() for file in HOST.rglob("*.py") if file.name != "limits.py")
    used = {word for text in others for word in re.findall(r"\b[A-Z][A-Z\d_]+\b", text)}
    assert not named.keys() - used
    assert all((HOST / reader.module).is_file() for reader in READERS)


# Who else may call json.loads, and why.
OWN_JSON = {
    "files/fields.py",  # for all others
    "frontend/pt2.py",  # copies each value by its own rules
    "tuned/database.py",  # of its own records, which it made
}


def test_json_of_others_is_read_by_fields() -> None:
    calls = {
        str(file.relative_to(HOST))
        for file in HOST.rglob("*.py")
        if {"json.loads(", "json.load("} & set(_calls(file.read_text()))
    }
    assert calls == OWN_JSON


def _calls(text: str) -> list[str]:
    return [f"json.{name}(" for name in ("loads", "load") if f"json.{name}(" in text]


# ------------------------------------------------------------------------------------ templates


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "it takes more than 2 s of CPU time"),
        ("{{ 'a' * 3000000000 }}", "it takes more than 512 MB of memory"),
        ("{{ '%3000000000d' % 3 }}", "it takes more than 512 MB of memory"),
        ("{{ 'a' * 30000000 }}", "it writes 30,000,000 characters, and at most 16,777,216 may be"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
        ("{{ cycler() }}", "at least one item has to be provided"),
        ("{{ 2.0 ** 100000 }}", "(34, 'Numerical result out of range')"),
    ],
)  # fmt: skip
def test_templates(template: str, why: str) -> None:
    pytest.importorskip("jinja2")
    text = said(DecodeError, lambda: chat_text(Beside(template=template), USER))
    assert text.startswith(f"the chat template does not take these messages: {why}")
    assert text.endswith("\n  try: --no-chat")


def test_the_stopped_process_leaves_this_one_as_it_was() -> None:
    pytest.importorskip("jinja2")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    said(DecodeError, lambda: chat_text(Beside(template="{{ 'a' * 3000000000 }}"), USER))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert time.process_time() - begun < 5


# ------------------------------------------------------------------------------------ tokenizers


def tokenizer(folder: Path, **changes: object) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    bpe = tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")])
    whole = json.loads(tokenizers.Tokenizer(bpe).to_str()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return folder / "tokenizer.json"


def test_a_tokenizer_in_its_process(tmp_path: Path) -> None:
    file = tokenizer(tmp_path)
    own = Confinement(file)
    assert own.encode("abba", True) == [2, 1, 0] and own.token("b") == 1
    assert own.decode([2, 0]) == "ab a"
    assert own.token("ö") is None


def test_a_regular_expression_that_tries_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
             "invert": False}  # fmt: skip
    own = Confinement(tokenizer(tmp_path, pre_tokenizer=split))
    assert said(DecodeError, lambda: own.encode("a" * 30 + "!", True)) == (
        "the tokenizer cannot convert this: Onig: Regex search error: retry-limit-in-match over\n"
        f"  in:  {tmp_path}/tokenizer.json\n"
        "  try: another text, another tokenizer.json, or --prompt-ids 1,2,3"
    )
    assert own.encode("ab", True) == [2]  # the process, or another in its place, goes on
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_that_grows_a_text(tmp_path: Path) -> None:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 900_000}
    own = Confinement(tokenizer(tmp_path, normalizer=replace))
    text = said(DecodeError, lambda: own.encode("a" * 3000, True))
    assert "of memory" in text or "tokens, and at most" in text or "ends its process" in text


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    file.write_text("[" * 100_000)
    assert said(DecodeError, lambda: Confinement(file)).startswith("the tokenizer cannot be read: ")
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert said(DecodeError, lambda: Confinement(file)) == (
        "the tokenizer cannot be read: it has 1,099,511,627,776 bytes, and at most 268,435,456 are "
        f"read\n  in:  {file}"
    )


# ------------------------------------------------------------------------------ configurations

EXPORTED = "\n  try: the file as its exporter wrote it"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", '{"a":' * 100_000,
         "this is not JSON: it is nested too deeply for recursion"),
        ("config.json", b"\xff\xff",
         "this is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: "
         "invalid start byte"),
        ("config.json", '{"n_positions": 1%s}' % ("0" * 5000),
         "this is not JSON: a number has thousands of digits"),
        ("config.json", "[]", "this is not a JSON object"),
        ("config.json", '{"text_config": 3}', "text_config is 3, and must be an object"),
        ("config.json", '{"text_config": {"n_positions": "9"}}',
         "text_config.n_positions is a text, and must be a number"),
        ("config.json", '{"n_positions": -4}', "n_positions is -4, and must not be negative"),
        ("config.json", '{"n_positions": 1e400}', "n_positions is inf, and must be a number"),
        ("config.json", '{"n_positions": 9000000000}',
         "n_positions is 9,000,000,000, and must be at most 2,147,483,648"),
        ("config.json", '{"sliding_window": 3, "layer_types": [[]]}',
         "layer_types[0] is a list, and must be a text"),
        ("config.json", '{"sliding_window": 3, "model_type": {}}',
         "model_type is an object, and must be a text"),
        ("genai_config.json", '{"model": [1]}', "model is a list, and must be an object"),
        ("chat_template.jinja", b"\xff", "the chat template cannot be read: it is not text"),
    ],
)  # fmt: skip
def test_odd_files_beside_a_decoder(
    tmp_path: Path, name: str, content: str | bytes, why: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = said(DecodeError, lambda: beside(tmp_path / "model.onnx"))
    advice = "\n  try: --no-chat" if name.endswith("jinja") else EXPORTED
    assert text == f"{why}\n  in:  {file}" + ("" if "JSON" in why else advice)


def test_a_sound_model_of_huge_spectra(tmp_path: Path) -> None:
    config = {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448,
              "decoder_start_token_id": 1}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text('{"n_fft": 1000000000}')
    assert said(DecodeError, lambda: speech_of(tmp_path)) == (
        "n_fft is 1,000,000,000, and must be at most 4,096\n"
        f"  in:  {tmp_path}/preprocessor_config.json{EXPORTED}"
    )


# ------------------------------------------------------------------------------------ images


def png(path: Path, wide: int, tall: int) -> Path:
    """A gray image of zeros, written row by row."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content).to_bytes(4)
        return len(content).to_bytes(4) + kind + content + check

    packer = zlib.compressobj(9)
    data = b"".join([packer.compress(bytes(1 + wide)) for _ in range(tall)]) + packer.flush()
    head = struct.pack(">IIBBBBB", wide, tall, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    return path


def test_an_image_that_grows(tmp_path: Path) -> None:
    """It would take 5.3 GB."""
    pytest.importorskip("PIL")
    file = png(tmp_path / "a.png", 1, 20_000)
    how = parse("resize=256 crop=224 color=RGB layout=NCHW")
    assert said(InputError, lambda: read_image(file, how)) == (
        "the image becomes 256 x 5,120,000 pixels, and at most 16,777,216 are computed\n"
        f"  in:  {file}\n"
        "  try: take it out of the folder, or make it smaller, or another resize and crop"
    )
    assert read_image(file, parse("resize=224x224 color=RGB layout=NCHW")).shape == (1, 3, 224, 224)
    huge = parse("crop=9000x9000 color=RGB layout=NCHW")
    assert "the image becomes 9,000 x 9,000 pixels" in said(
        InputError, lambda: read_image(file, huge)
    )


def test_an_image_of_too_many_pixels(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    file = png(tmp_path / "a.png", 20_000, 4000)
    assert file.stat().st_size < 1 << 20
    how = parse("resize=8x8 color=RGB layout=NCHW")
    assert said(InputError, lambda: read_image(file, how)).startswith(
        "the image has 20,000 x 4,000 pixels, and at most 67,108,864 are computed"
    )


def test_images_of_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS is a program; Pillow would start Ghostscript for it."""
    pytest.importorskip("PIL")
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a program is started"))
    monkeypatch.setattr(subprocess, "check_call", lambda *a, **k: pytest.fail("a program"))
    file = tmp_path / "a.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert said(InputError, lambda: read_image(file, parse("color=RGB layout=NCHW"))) == (
        f"the image cannot be read: cannot identify image file '{file}'\n"
        f"  in:  {file}\n  try: take it out of the folder, or save it again"
    )
    from PIL import Image

    for kind in ("GIF", "PPM", "TGA", "ICO", "PCX"):
        Image.new("RGB", (16, 16)).save(file, kind)
        assert "cannot identify" in said(
            InputError, lambda: read_image(file, parse("color=RGB layout=NCHW"))
        )


# ------------------------------------------------------------------------------------ sound, arrays


def test_every_beginning_of_a_sound(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    about = struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
    odd = b"LIST" + (3).to_bytes(4, "little") + b"abc\0"
    whole = b"WAVE" + odd + b"fmt " + (16).to_bytes(4, "little") + about
    whole += b"data" + (0xFFFFFFFF).to_bytes(4, "little") + np.arange(5, dtype="<i2").tobytes()
    whole = b"RIFF" + (0xFFFFFFFF).to_bytes(4, "little") + whole
    file.write_bytes(whole)
    assert len(read_wav(file, 16000)) == 5  # as a program writes into a pipe
    for size in range(len(whole) - 10):
        file.write_bytes(whole[:size])
        said(DecodeError, lambda: read_wav(file, 16000))


def test_archives_that_unpack_to_more_together(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(
                    stream, {"descr": "|u1", "fortran_order": False, "shape": (160 << 20,)}
                )
                for _ in range(160):
                    stream.write(bytes(1 << 20))
    assert file.stat().st_size < 1 << 20
    with npy.opened(file) as found:
        assert found["a"].size == 160 << 20
        text = said(npy.Unreadable, lambda: found["b"])
        assert text.startswith("'b' unpacks to 167,772,") and "268,435,456" in text


# ------------------------------------------------------------------------------------ models


def onnx_file(path: Path, *weights: TensorProto) -> Path:
    """y = x + w."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([add], "graph", [x], [y], list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def cached(folder: Path, whole: bool, inner: str = "") -> Path:
    """A model and its weights as Hugging Face's cache has them: names that lead to blobs/. whole:
    the model, too, is such a name."""
    snapshot, blobs = folder / "snapshots" / "abc" / inner, folder / "blobs"
    model = onnx_file(snapshot / "model.onnx", outside("model.onnx_data"))
    blobs.mkdir()
    (blobs / "456").write_bytes(np.ones(6, np.float32).tobytes())
    (snapshot / "model.onnx_data").symlink_to(blobs / "456")
    if whole:
        model.rename(blobs / "123")
        model.symlink_to(blobs / "123")
    return model


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("inner", ["", "onnx"])
def test_weights_in_a_cache(tmp_path: Path, whole: bool, inner: str) -> None:
    function = from_onnx(cached(tmp_path, whole, inner))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(function, [x])["y"], x + 1)


@pytest.mark.parametrize("location", ["../w.bin", "inner/../../w.bin", "link", "{}/w.bin"])
def test_weights_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    """A model that names them would bring a file of this user onto a board."""
    (tmp_path / "w.bin").write_bytes(bytes(24))
    file = tmp_path / "model" / "model.onnx"
    location = location.format(tmp_path)
    onnx_file(file, outside(location))
    (file.parent / "inner").mkdir()
    (file.parent / "link").symlink_to(tmp_path / "w.bin")
    assert said(ImporterError, lambda: from_onnx(file)) == (
        f"the weights in {location!a:.60} are outside of the model's folder\n  in:  {file}\n"
        f"  try: copy the file into {file.parent}, under a name without '..'"
    )


def test_an_output_without_a_shape_beside_external_weights(tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "model.onnx", outside("w.bin"))
    (tmp_path / "w.bin").write_bytes(bytes(24))
    model = onnx.load(file, load_external_data=False)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.ir_version = 3  # in which weights must be inputs; exporters do not know it
    onnx.save(model, file)
    assert [o.type.shape for o in from_onnx(file).outputs] == [(2, 3)]


def test_databases_that_are_too_large(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert said(TuneError, lambda: Database(file)) == (
        "the tuning database has 1,099,511,627,776 bytes, and at most 1,073,741,824 are read\n"
        f"  in:  {file}\n  try: a new file: mlc-deploy tune MODEL --db FILE"
    )


def test_a_range_that_takes_gigabytes() -> None:
    """Of 200 bytes."""
    bounds = [helper.make_tensor(n, TensorProto.INT64, [], [v])
              for n, v in (("a", 0), ("b", 1 << 28), ("c", 1))]  # fmt: skip
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    node = helper.make_node("Range", ["a", "b", "c"], ["y"], name="r")
    graph = helper.make_graph([node], "graph", [], [y], bounds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert said(ImporterError, lambda: from_onnx(model)).startswith(
        "a range of 268435456 elements is too large"
    )


@pytest.mark.parametrize("rank", [33, 5000])
def test_tensors_of_many_dimensions(rank: int) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1] * rank) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert said(ImporterError, lambda: from_onnx(model)) == (
        f"input 'x' has {rank:,} dimensions, and at most 32 can be computed\n  in:  the model\n"
        "  try: a model whose tensors have fewer dimensions"
    )
    with pytest.raises(GraphError) as caught:
        BlockBuilder().param("x", [1] * rank)
    assert str(caught.value) == (
        f"the parameter 'x' has {rank:,} dimensions, and at most 32 can be computed\n"
        "  try: fewer dimensions"
    )
    lite = Model()
    lite.outputs = [lite.tensor([1] * rank)]
    lite.op("RELU", [lite.input([1] * rank)], lite.outputs)
    assert said(ImporterError, lambda: from_tflite(lite.build())).startswith(
        "the .tflite file is damaged or cut off: a tensor has"
    )


def test_limits_of_address_space_exist_here() -> None:
    """What the limits on memory of templates and tokenizers rest on."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29,) * 2); bytes(1 << 30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MemoryError" in done.stderr
