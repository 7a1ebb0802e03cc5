"""Every page is reachable, complete and in the field's words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import scripts.reference as reference
from scripts.words import WORDS, found, main, pages, sources

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)


def linked(page: Path) -> set[Path]:
    """The pages that a page links to, or lists in its table of contents."""
    text = page.read_text()
    links = {(page.parent / link).resolve() for link in LINK.findall(text)}
    for tree in TREE.findall(text):
        names = [line for line in tree.splitlines() if line and not line.startswith(":")]
        links |= {(page.parent / f"{name}.md").resolve() for name in names}
    return {link for link in links if link.suffix == ".md" and link.exists()}


def test_every_page_of_docs_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = {ROOT / "README.md"}
    while todo:
        page = todo.pop()
        seen.add(page)
        todo |= linked(page) - seen
    assert {*(ROOT / "docs").rglob("*.md")} - seen == {ROOT / "docs" / "index.md"}


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("how-to/tflite", "mlc-deploy model.tflite"),
        ("how-to/decoders", "mlc-deploy generate"),
        ("how-to/gate", "No board and no GPU"),
        ("how-to/without_laptop", "--emit obj"),
        ("how-to/int8", "--max-drop"),
    ],
)
def test_the_readme_leads_to_what_people_ask_first(page: str, shown: str) -> None:
    file = ROOT / "docs" / f"{page}.md"
    assert file in linked(ROOT / "README.md") and shown in file.read_text()


def test_every_page_is_in_the_table_of_contents() -> None:
    index = ROOT / "docs" / "index.md"
    assert {*(ROOT / "docs").rglob("*.md")} - linked(index) == {index}


def test_generated_pages_are_what_the_script_writes() -> None:
    assert reference.main(["--check"]) == 0


@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_public_name_is_in_the_reference(room: str) -> None:
    module, _ = reference.ROOMS[room]
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert [name for name in module.__all__ if f"\n### {name}\n" not in text] == []


def test_pages_and_sources_use_the_words_of_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "planted",
    [
        "Inputs are drawn from a seed.",
        "It has an open dimension.",
        "With an open batch, each run decides it.",
        "the turns of a loop",
        "what it says behind a prompt",
        "Small integers",
        "inputs as they come in earnest",
        "the likeliest token",
        "the right outputs",
    ],
)
def test_planted_words_are_found(planted: str, tmp_path: Path) -> None:
    assert list(found(planted))
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{planted}\n")
    assert main([str(page)]) == 1


PLANTED = {
    "a message": ("f.py", 'raise ValueError(f"{n} has an open extent")\n', 1),
    "a message in two literals": ("f.py", 'x = (\n    "inputs are small "\n    "integers"\n)\n', 2),
    "a message of several grammars": ("f.py", "raise ValueError(f\"'{n}' is no layer\")\n", 1),
    "a docstring": ("f.py", 'def f():\n    """One.\n\n    The turns of a\n    loop."""\n', 4),
    "comments": ("f.py", "# Numbers are drawn\n# from a seed.\nx = 1\n", 1),
    "a message in C": ("f.c", 'int x;\nfail("this is no "\n     "model");\n', 2),
    "a comment in C": ("f.h", "/* What each\n * run decides. */\n", 1),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_words_in_sources_are_found(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text, line = PLANTED[kind]
    file = tmp_path / name
    file.write_text(text)
    assert main([str(file)]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:{line}: ")


def test_names_in_sources_are_no_prose(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text('turns = {"likeliest": 1}["likeliest"]  # `turns`\nx = f"{turns.behind}"\n')
    assert main([str(file)]) == 0


def test_words_in_code_blocks_are_no_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\n# drawn from\n```\n\n    drawn from a seed\n")
    assert main([str(page)]) == 0


def test_the_list_of_words_names_a_remedy_each() -> None:
    assert all(WORDS.values())
    assert {path.suffix for path in pages()} == {".md", ".txt"}
    assert {path.suffix for path in sources()} == {".py", ".c", ".h"}
    assert len(sources()) > 500
