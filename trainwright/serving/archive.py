"""What may lie in the file of an exported program. Torch trusts what it reads, so this is looked at before.

``torch.export.load`` unpickles what the archive says is pickled, loads compiled libraries that lie in it, and
evaluates the expressions over sizes that it holds. A program that this library wrote has none of the first
two, and its expressions name nothing but sizes. Standard library only.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.errors import InputError

TRANSFORMS, SIGNATURE = "transforms.json", "signature.json"
"""Documents that travel inside the archive, as torch's extra files."""

_MEMBERS = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json"
    r"|extra/(transforms|signature)\.json"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
)
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_NAME = re.compile(r"[^\W\d]\w*")
_SIZES = re.compile(
    r"[su]\d+|L|size|Symbol|positive|integer|nonnegative|Integer|True|False|and|or|not|And|Or|Not"
    r"|Add|Mul|Pow|Abs|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|CeilToInt|FloorToInt|TruncToInt|RoundToInt"
    r"|IntTrueDiv|FloatTrueDiv|PowByNatural|ToFloat|Where|ModularIndexing|Eq|Ne|Le|Lt|Ge|Gt"
    r"|numbers|times|categories|tokens"
)


def check_archive(path: Path) -> None:
    """Check that a program's file holds nothing that runs when torch reads it.

    It is no proof against a forger who knows torch's reader well: the digest in the model's manifest is.

    Raises:
        InputError: It is no program, or holds what no program of this library does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            root = names[0].partition("/")[0] + "/" if names else ""
            _check_members(archive, root)
            for config in _CONFIGS:
                _check_config(_json(archive, root + config))
            _check_expressions(_json(archive, f"{root}models/model.json"))
    except FileNotFoundError:
        raise InputError("there is no program here", where=str(path)) from None
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, OSError) as error:
        raise InputError(f"this is no exported program: {error}", where=str(path)) from None
    except InputError as error:
        raise InputError(error.what, where=str(path), hint="Load only programs that you trust.") from None


def _check_members(archive: zipfile.ZipFile, root: str) -> None:
    names = archive.namelist()
    foreign = [name for name in names if not _MEMBERS.fullmatch(name.removeprefix(root))]
    if foreign or len(set(names)) != len(names):
        raise InputError(f"the program holds what does not belong in one: {foreign or 'a name twice'}")
    if archive.getinfo(f"{root}data/sample_inputs/model.pt").file_size:
        raise InputError("the program holds sample inputs, which torch would unpickle")


def _check_config(config: Any) -> None:
    if pickled := [name for name, entry in config["config"].items() if entry["use_pickle"] is not False]:
        raise InputError(f"tensors of the program are pickled: {pickled}")


def _check_expressions(model: Any) -> None:
    """Check that what torch evaluates speaks of sizes alone."""
    for text in (*_expressions(model), *model.get("guards_code", ())):
        wrong = [name for name in _NAME.findall(text) if not _SIZES.fullmatch(name)]
        # What is escaped in a text within the text would not be seen.
        wrong += ["a backslash"] if "\\" in text else []
        if wrong:
            raise InputError(f"the program has an expression that names {wrong}")


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(text := value.get("expr_str"), str):
            yield text
        for entry in value.values():
            yield from _expressions(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _expressions(entry)


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    return json.loads(archive.read(name))
