"""The test session's own rules: groups, golden files, and what makes a run end red."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import pytest
    def test_plain(): pass
    @pytest.mark.fuzz
    def test_long(): pass
"""
FRESH = "class BuildError(Exception): pass\ndef build(say): say('built')\n"
BROKEN = "class BuildError(Exception): pass\ndef build(say): raise BuildError('no zig here')\n"
GOLDEN = "def test_text(golden): golden('first\\nsecond')"


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project with this conftest, and a device runtime that is up to date."""
    pytester.makeini("[pytest]\npythonpath = .\naddopts = -p no:cacheprovider")
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    (pytester.path / "runtime_build.py").write_text(FRESH)
    (pytester.path / "golden").mkdir()
    return pytester


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["test_plain"]),
        (["--only", "default"], ["test_plain"]),
        (["--only", "fuzz"], ["test_long"]),
        (["--all"], ["test_plain", "test_long"]),
    ],
)
def test_groups(arguments: list[str], names: list[str], session: pytest.Pytester) -> None:
    session.makepyfile(TESTS)
    result = session.runpytest_subprocess("-v", *arguments)
    assert result.ret == 0
    passed = [line.split("::")[1].split()[0] for line in result.outlines if " PASSED" in line]
    assert passed == names


def test_unknown_group_is_refused(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess("--only", "nothing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*invalid choice: 'nothing'*'default'*'fuzz'*"])


def test_stale_runtime_ends_red(session: pytest.Pytester) -> None:
    (session.path / "runtime_build.py").write_text(BROKEN)
    session.makepyfile(TESTS)
    result = session.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*this run does not count*",
            "the device runtime is not that of the sources: no zig here",
            "*1 passed*",
        ]
    )


def test_golden_text_differs(session: pytest.Pytester) -> None:
    session.makepyfile(GOLDEN)
    (session.path / "golden" / "test_text.txt").write_text("first\nother\n")
    result = session.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*test_text.txt differs; if intended: pytest --regen", "-other", "+second"]
    )
    assert (session.path / "golden" / "test_text.txt").read_text() == "first\nother\n"


def test_regenerating_rewrites_and_ends_red(session: pytest.Pytester) -> None:
    session.makepyfile(GOLDEN)
    result = session.runpytest_subprocess("--regen")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["golden files were rewritten: read git diff, run again"])
    assert (session.path / "golden" / "test_text.txt").read_text() == "first\nsecond\n"
    assert session.runpytest_subprocess().ret == 0
