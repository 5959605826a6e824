"""The uncommitted changes of an experiment beside its run, from real git work trees."""

import subprocess
from pathlib import Path

import pytest

from trainwright.local import run_folder
from trainwright.local.run_folder import store_changes

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree with one committed file, and a run's folder beside it."""
    folder = tmp_path / "tree"
    (folder / "experiments").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    git(folder, "init", "-q")
    (folder / "model.py").write_text("layers = 2\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def stored(tree: Path) -> str:
    store_changes(tree / "experiments", tree.parent / "run")
    place = tree.parent / "run" / "source.patch"
    return place.read_text() if place.exists() else ""


def test_stored_changes_applied_to_the_commit_give_the_changed_files(tree: Path) -> None:
    (tree / "model.py").write_text("layers = 3\n")
    (tree / "added.py").write_text("x = 1\n")
    git(tree, "add", "added.py")
    (tree / "notes.txt").write_text("never read")
    text = stored(tree)
    assert text.startswith(f"# Changes since commit {git(tree, 'rev-parse', 'HEAD').strip()}\n")
    assert "# untracked, not included: notes.txt\n" in text
    assert "never read" not in text
    clone = tree.parent / "clone"
    git(tree.parent, "clone", "-q", str(tree), str(clone))
    git(clone, "apply", str(tree.parent / "run" / "source.patch"))
    assert (clone / "model.py").read_text() == "layers = 3\n"
    assert (clone / "added.py").read_text() == "x = 1\n"


def test_secrets_are_not_stored_and_the_patch_says_so(tree: Path) -> None:
    (tree / "model.py").write_text(f'layers = 3\nkey = "{KEY}"\n')
    text = stored(tree)
    assert KEY not in text
    assert "# secrets are replaced by ***: it may not apply\n" in text
    assert "+layers = 3" in text


def test_long_changes_are_cut_and_the_patch_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MAX_BYTES", 500)
    (tree / "model.py").write_text("layers = 3\n" * 200)
    text = stored(tree)
    assert "# cut after 500 bytes: it does not apply\n" in text
    assert len(text) < 700


def test_clean_tree_and_a_folder_outside_of_git_store_nothing(tree: Path, tmp_path: Path) -> None:
    (tree / "model.py").write_text("layers = 3\n")
    assert stored(tree)
    git(tree, "checkout", "-q", "model.py")
    assert stored(tree) == "", "that of the earlier start is gone"
    store_changes(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run" / "source.patch").exists()
