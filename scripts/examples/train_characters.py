"""Trains a language model of characters, and lets it write, in torch and on boards.

    python scripts/examples/train_characters.py FOLDER [--steps N] [--board B]...

FOLDER gets the program characters.pt2, which `mlc-deploy generate FOLDER` takes, and a
tokenizer.json whose tokens are characters. The text is Python's own: the docstrings of its standard
library, as many characters of them as TEXT says.

The model is a transformer as GPT-2 has it (Radford et al. 2019), of two layers, whose keys and
values stand in buffers: `input_ids` and `cache_position` are all that a step takes.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import mlc_deploy as mlc

TEXT = 200_000  # characters that are learned from
SEED, BATCH, RATE = 0, 16, 2e-3
WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 128
STEP = 32  # characters that one step of the exported program reads at most
PROMPT, COUNT = "Return the ", 64
UNKNOWN = "?"  # stands for characters that are not ASCII


def docstrings(count: int = TEXT) -> str:
    """The first characters of the docstrings of Python's standard library, by files' names."""
    found: list[str] = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(file.read_bytes())
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        found += [text for text in texts if text]
        if sum(map(len, found)) >= count:
            break
    text = "\n".join(found)[:count]
    return text.encode("ascii", "replace").decode()


class Layer(nn.Module):  # type: ignore[misc]
    """Attention to what was read so far, and a layer for each character by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.three, self.one = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: Any, places: Any = None) -> Any:
        """places: where the rows of x are in a text whose others are in the buffers; None for
        whole texts, as they are learned from."""
        parts = self.three(self.before(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for p in parts)
        attention = functional.scaled_dot_product_attention
        if places is None:
            y = attention(q, k, v, is_causal=True)
        else:
            self.keys.index_copy_(2, places, k)
            self.values.index_copy_(2, places, v)
            seen = torch.arange(LENGTH) <= places[:, None]
            y = attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.one(y.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Characters(nn.Module):  # type: ignore[misc]
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, tokens)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)  # as GPT-2's

    def forward(self, input_ids: Any, cache_position: Any = None) -> Any:
        places = torch.arange(input_ids.shape[1]) if cache_position is None else cache_position
        x = self.token(input_ids) + self.place(places)
        for layer in self.layers:
            x = layer(x, cache_position)
        return self.head(self.norm(x))


def trained(text: str, steps: int) -> tuple[Characters, list[str]]:
    """A model of the text, and the characters that are its tokens."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    letters = sorted(set(text) | set(PROMPT) | {UNKNOWN})
    tokens = torch.tensor([letters.index(c) for c in text])
    model = Characters(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for step in range(steps):
        begins = torch.randint(len(tokens) - LENGTH, (BATCH, 1))
        rows = tokens[begins + torch.arange(LENGTH)]
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}", flush=True)
    return model.eval(), letters


def written(model: Characters, letters: list[str], prompt: str = PROMPT, count: int = COUNT) -> str:
    """What the model generates after a prompt, in torch: the most likely characters, each from all
    before it."""
    tokens = [letters.index(c) for c in prompt]
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return "".join(letters[token] for token in tokens[len(prompt) :])


def export(model: Characters, letters: list[str], folder: Path) -> Path:
    """The program, and a tokenizer of characters beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    count = torch.export.Dim("tokens", min=1, max=STEP)
    given = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "cache_position": torch.arange(3)}
    shapes = {"input_ids": {1: count}, "cache_position": {0: count}}
    with torch.no_grad():
        program = torch.export.export(model, (), given, dynamic_shapes=shapes)
    torch.export.save(program, folder / "characters.pt2")
    tokenizer = {
        "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated",
                          "invert": False},
        "model": {"type": "WordLevel", "vocab": {c: n for n, c in enumerate(letters)},
                  "unk_token": UNKNOWN},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder / "characters.pt2"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--board", action="append", default=[], help="lets it write on this board")
    asked = parser.parse_args()
    model, letters = trained(docstrings(), asked.steps)
    file = export(model, letters, asked.folder)
    right = written(model, letters)
    print(f"torch: {PROMPT}{right!r}")
    for url in asked.board:
        with mlc.connect(url) as board:
            reply = mlc.generate(file, PROMPT, board, tokens=COUNT)
            text = "".join(reply)
        print(f"{url}: {PROMPT}{text!r}")
        if text != right:
            raise SystemExit(f"{url} writes another text than torch")


if __name__ == "__main__":
    main()
