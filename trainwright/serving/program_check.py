"""Check an exported program before torch reads it: its archive, its operators, and every text in its graph.

``torch.export.load`` unpickles members, imports modules, resolves any attribute of ``torch``, evaluates
expressions, and writes names into Python source that it executes. A program may hold only what the exports of
this library hold, so everything that is not listed here is rejected.
"""

import keyword
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch

from trainwright.documents import read_json
from trainwright.errors import InputError, ModelRefused

_MEMBERS = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json"
    r"|extra/(transforms|signature)\.json"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
)
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_MODEL = "models/model.json"
_MALFORMED = (zipfile.BadZipFile, LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError)
_MAX_DOCUMENT = 64 << 20
"""Bytes of a JSON member; a language model of 100 layers has about 8 MiB."""

_ARITHMETIC = """
    abs acos acosh add addcdiv addcmul addmm all amax amin any argmax argmin argsort asin asinh atan atan2
    atanh baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm ceil clamp clamp_max clamp_min clip
    copysign cos cosh cummax cummin cumprod cumsum div divide dot einsum eq erf erfc erfinv exp exp2 expm1
    floor floor_divide fmod frac ge greater greater_equal gt hypot isfinite isin isinf isnan le lerp less
    less_equal lgamma log log10 log1p log2 logaddexp logcumsumexp logical_and logical_not logical_or
    logical_xor logit logsumexp lt matmul max maximum mean median min minimum mm mul multiply mv
    nan_to_num nanmean nansum ne neg negative norm not_equal outer positive pow prod reciprocal remainder
    round rsqrt rsub sgn sigmoid sign sin sinc sinh sort sqrt square std std_mean sub subtract sum tan
    tanh topk true_divide trunc var var_mean xlogy
"""
_LAYERS = """
    adaptive_avg_pool1d adaptive_avg_pool2d alpha_dropout avg_pool1d avg_pool2d batch_norm bilinear cdist
    celu conv1d conv2d conv_transpose1d conv_transpose2d convolution cosine_similarity dropout elu
    embedding feature_dropout gelu glu group_norm gru hardshrink hardsigmoid hardswish hardtanh
    instance_norm layer_norm leaky_relu linalg_vector_norm linear log_sigmoid log_softmax lstm max_pool1d
    max_pool2d mish native_group_norm native_layer_norm prelu relu relu6 rms_norm
    scaled_dot_product_attention selu silu softmax softplus softshrink threshold _log_softmax
    _native_batch_norm_legit_no_training _softmax
"""
_SHAPES = """
    alias arange broadcast_tensors broadcast_to bucketize cat chunk clone concat concatenate
    constant_pad_nd contiguous copy detach diag diag_embed diagonal expand expand_as eye fill flatten flip
    full full_like gather hstack index index_add index_put index_select lift_fresh_copy linspace
    masked_fill meshgrid movedim narrow new_full new_ones new_zeros one_hot ones ones_like pad permute
    ravel repeat repeat_interleave reshape roll scalar_tensor scatter scatter_add searchsorted select
    slice split split_with_sizes squeeze stack swapaxes t take_along_dim tensor_split tile to transpose
    tril triu type_as unbind unflatten unfold unsqueeze view view_as vstack where zero zeros zeros_like
    _assert_scalar _assert_tensor_metadata _to_copy sym_constrain_range sym_constrain_range_for_size
    sym_numel sym_size
"""
OPERATORS = frozenset(f"{_ARITHMETIC} {_LAYERS} {_SHAPES}".split())
"""Operators of ``aten``: pure functions of tensors, without files, randomness, memory addresses or loops.

Each may also stand with ``_`` behind its name: the form that writes to its own tensor.
"""

_OPERATOR = re.compile(r"torch\.ops\.aten\.(\w+?)_?\.((?:(?!out)\w)+)")
_SIZE_OPERATOR = re.compile(
    r"_operator\.(add|sub|mul|floordiv|mod|neg|eq|ne|lt|le|gt|ge|getitem)"
    r"|torch\.sym_(max|min|int|float|not|ite)|math\.(ceil|floor|trunc)"
)

_NAME = re.compile(r"[^\W\d]\w*")
_SIZES = re.compile(
    r"[su]\d+|L|size|Symbol|positive|integer|nonnegative|Integer|True|False|and|or|not|And|Or|Not"
    r"|Add|Mul|Abs|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|CeilToInt|FloorToInt|TruncToInt|RoundToInt"
    r"|IntTrueDiv|FloatTrueDiv|ToFloat|Where|ModularIndexing|Eq|Ne|Le|Lt|Ge|Gt"
    r"|numbers|times|categories|tokens"
)
_EVALUATED = re.compile(r"\\|\*\*|\d{20}|.{1001}|[\r\n]")
"""What no expression has: an escape could hide a name, a power or a long number could cost hours."""

_KINDS = """
    as_none as_tensor as_tensors as_int as_ints as_float as_floats as_string as_bool as_bools as_name
    as_expr as_sym_int as_sym_ints as_sym_float as_sym_floats as_sym_bool as_sym_bools as_scalar_type
    as_memory_format as_layout as_device as_optional_tensor as_optional_tensors
"""
_VALUES = frozenset(_KINDS.split())
"""Kinds of values. Not among them: graphs inside a graph, operators, objects of Python or C++."""

_EMPTY = frozenset({"custom_obj", "custom_obj_values", "treespec_namedtuple_fields", "custom", "token"})
_TEXTS = {
    "type": re.compile("cpu"),  # of a device
    "torch_version": re.compile(r"[\w.+]*"),
    "as_string": re.compile(r"[\w ,.>-]*"),
    "nn_module_stack": re.compile(r"[^\r\n]*"),
    "torch_fn": re.compile(r"[^\r\n]*"),
}
_TEXT = re.compile(r"[\w.-]*")
_SYMBOL = re.compile(r"[su]\d{1,4}")


def check_archive(path: Path) -> None:
    """Check a program's file, without unpickling, importing or evaluating any of it.

    Raises:
        InputError: It is no exported program.
        ModelRefused: It holds an operator, a member or a text that no export of this library has.
    """
    try:
        problem = _find_problem(path)
    except FileNotFoundError:
        raise InputError("there is no program here", where=str(path)) from None
    except _MALFORMED as error:
        raise InputError(f"this is no exported program: {error}", where=str(path)) from None
    if problem:
        raise ModelRefused(
            problem,
            where=str(path),
            hint="Train it again with operators that docs/trust.md names; do not load this file elsewhere.",
        )


def _find_problem(path: Path) -> str:
    """Describe the first thing that does not belong into a program; empty if there is none."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if problem := _check_members(members, path.stat().st_size):
        return problem
    # The documents come from the reader that torch.export.load uses: another could see another archive.
    reader = torch._C.PyTorchFileReader(str(path))
    names = [member.filename.partition("/")[2] for member in members]
    if sorted(reader.get_all_records()) != sorted(names):
        return "the program's archive has two tables of contents"
    empty = {name for name, member in zip(names, members, strict=True) if not member.file_size}
    for file in _CONFIGS:
        if problem := _check_tensors(_read(reader, file), file.rpartition("/")[0], empty):
            return problem
    return next(_problems(_read(reader, _MODEL)), "")


def _read(reader: Any, file: str) -> Any:
    return read_json(reader.get_record(file), where=file, max_bytes=_MAX_DOCUMENT)


def _check_members(members: list[zipfile.ZipInfo], size: int) -> str:
    names = [member.filename for member in members]
    root = names[0].partition("/")[0] + "/" if names else ""
    foreign = [name for name in names if not _MEMBERS.fullmatch(name.removeprefix(root))]
    if foreign or len(set(names)) != len(names):
        return f"the program holds what does not belong in one: {foreign[:5] or 'a name twice'}"
    packed = [member.filename for member in members if member.compress_type or member.flag_bits & 1]
    if packed:
        return f"the program holds compressed members, which may unfold to any size: {packed[:5]}"
    if sum(member.file_size for member in members) > size:
        return "the members of the program are larger than its file"
    for member in members:
        if member.filename == f"{root}data/sample_inputs/model.pt" and member.file_size:
            return "the program holds sample inputs, which torch would unpickle"
        if member.filename.endswith(".json") and member.file_size > _MAX_DOCUMENT:
            size = member.file_size
            return f"{member.filename} of the program has {size:,} bytes; {_MAX_DOCUMENT:,} are allowed"
    return ""


def _check_tensors(config: Mapping[str, Any], folder: str, empty: Set[str]) -> str:
    for name, entry in config["config"].items():
        sizes = [size["as_int"] for size in entry["tensor_meta"]["sizes"]]
        if f"{folder}/{entry['path_name']}" in empty and math.prod(sizes):
            return f"tensor {name!r} of the program has the shape {sizes} and no bytes"
        if entry["use_pickle"] is not False:
            return f"tensors of the program are pickled: {name!r}"
        meta = entry["tensor_meta"]
        if meta["device"]["type"] != "cpu":
            return f"tensor {name!r} of the program is for device {meta['device']['type']!r}, not for the CPU"
    return ""


def _problems(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not belong into the description of a program."""
    for node in model["graph_module"]["graph"]["nodes"]:
        target, metadata = node["target"], node["metadata"]
        found = _OPERATOR.fullmatch(target)
        if not (found and found[1] in OPERATORS) and not _SIZE_OPERATOR.fullmatch(target):
            yield f"operator {target} of node {node.get('name')!r} is not on the list of allowed operators"
        if unknown := sorted(metadata.keys() - {"nn_module_stack", "torch_fn"}):
            yield f"node {node.get('name')!r} of the program has metadata {unknown}"
    for symbol in model["range_constraints"]:
        if not _SYMBOL.fullmatch(symbol):
            yield f"the program has a size named {symbol!r}"
    for text in model.get("guards_code", ()):
        yield from _check_expression(text)
    yield from _check_texts({key: value for key, value in model.items() if key != "guards_code"}, "")


def _check_texts(value: Any, key: str) -> Iterator[str]:
    """Yield each text, by its key, that torch could resolve, import, or take for source code."""
    if isinstance(value, dict):
        if key in _EMPTY and value:
            yield f"the program holds {key}: {sorted(value)[:5]}"
        for name, entry in value.items():
            if name.startswith("as_") and name not in _VALUES:
                yield f"the program has a value of kind {name!r}"
            if key.endswith("_values"):
                yield from _check_text(name, "name")
            yield from _check_text(name, "")
            yield from _check_texts(entry, name)
    elif isinstance(value, list):
        for entry in value:
            yield from _check_texts(entry, key)
    elif isinstance(value, str):
        yield from _check_text(value, key)


def _check_text(text: str, key: str) -> Iterator[str]:
    if key == "expr_str":
        yield from _check_expression(text)
    elif key in ("in_spec", "out_spec"):
        _, spec = read_json(text)
        yield from _check_structure(spec)
    elif key in ("name", "as_name", "forward_arg_names"):  # become names in source code
        if not text.isidentifier() or keyword.iskeyword(text):
            yield f"the program has the name {text[:80]!r}, which is no identifier"
    elif not _TEXTS.get(key, _TEXT).fullmatch(text):
        yield f"the program has {key or 'a key'} {text[:80]!r}"


def _check_expression(text: str) -> Iterator[str]:
    wrong = [name for name in _NAME.findall(text) if not _SIZES.fullmatch(name)]
    wrong += [found[0][:20] for found in _EVALUATED.finditer(text)]
    if wrong:
        yield f"the program has an expression that names {wrong}"


def _check_structure(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what torch could import for inputs and outputs other than plain tuples, lists and dicts."""
    if spec["type"] not in (None, "builtins.tuple", "builtins.list", "builtins.dict"):
        yield f"the program takes or returns a {spec['type']!r}"
    context = read_json(spec["context"]) if spec["context"] else None
    if context is not None and not (isinstance(context, list) and all(type(key) is str for key in context)):
        yield f"the program takes or returns a structure with {spec['context'][:80]!r}"
    for child in spec["children_spec"]:
        yield from _check_structure(child)
