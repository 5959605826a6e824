"""What the targets of the Makefile would run."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def commands(*targets: str) -> str:
    """Return what make would run for targets if nothing were made yet."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_plain_make_puts_the_command_line_into_venv_and_makes_no_environment() -> None:
    plain = commands()
    assert "-m venv --clear .venv" in plain
    assert "images/authoring/requirements.lock" in plain
    assert "chmod +x .venv/bin/trainwright" in plain
    assert "trainwright setup" not in plain


def test_make_setup_prepares_the_command_line_and_every_environment() -> None:
    setup = commands("setup")
    assert "chmod +x .venv/bin/trainwright" in setup
    assert "bin/trainwright setup" in setup


def test_readme_names_both_targets_as_they_are() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "`make` installs the command line into `.venv`" in readme
    assert "`make setup`" in readme


def test_every_target_is_phony_and_has_a_line_of_help() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    documented = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)
    assert sorted(phony.split()) == sorted(targets) == sorted(documented)


def test_every_recipe_runs_uv_with_the_settings_of_pip() -> None:
    assert "installer.py uv" in re.findall(r"^UV := (.*)$", MAKEFILE, re.MULTILINE)[0]
    assert not re.search(r"\$\(BIN\)/uv\b", MAKEFILE)


def test_audit_asks_about_every_package_of_every_lock_and_fails_where_it_gets_no_answer() -> None:
    recipe = commands("audit")
    assert "pip-audit --strict --disable-pip --require-hashes" in recipe
    locks = {path.relative_to(ROOT).as_posix() for path in (ROOT / "images").rglob("*.lock")}
    assert "images/torch/requirements-gpu.lock" in locks
    assert "images/feast/requirements-engines.lock" in locks
    assert all(lock in recipe for lock in locks if not lock.endswith("/torch.lock"))
    check = next(line for line in MAKEFILE.splitlines() if line.startswith("check:"))
    assert "audit" not in check, "it needs the network"


def test_sbom_lists_every_lock_without_the_network() -> None:
    recipe = commands("sbom")
    assert "cyclonedx-py" in recipe
    assert all(name in recipe for name in ("images/kfp.lock", "images/tabular/requirements.lock"))
