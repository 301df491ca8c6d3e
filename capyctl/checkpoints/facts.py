"""What a model's files hold: format, weight bytes, the file to load, the attention's shape."""

from __future__ import annotations

import os

import attrs

from capyctl.checkpoints import gguf, hybrids, safetensors, templates
from capyctl.checkpoints.gguf_files import GgufChoice, UnclearModel, choose_gguf
from capyctl.checkpoints.headers import HeaderError
from capyctl.checkpoints.model_files import ModelFile, ModelFiles
from capyctl.checkpoints.segments import open_same
from capyctl.contracts.checkpoints import Unmeasurable
from capyctl.domain.checkpoints import AttentionShape, HybridShape, TemplateMarks

_INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth")


@attrs.frozen(kw_only=True)
class Contents:
    """The part of a model's facts that is read from its files rather than hashed."""

    format: str
    weights_bytes: int
    weights_file: str | None = None
    attention: AttentionShape | None = None
    attention_refused: str | None = None
    hybrid: HybridShape | None = None
    model_type: str | None = None
    quantization: str | None = None
    template: TemplateMarks | None = None


def read_contents(found: ModelFiles, weights_file: str | None) -> Contents:
    """Read the headers of a model's files. Blocks.

    A header that makes no sense is no failure: its file counts with its full size, and
    ``attention_refused`` says why no cache size can be derived.

    Raises:
        Unmeasurable: ``changed`` or ``io_error``.
    """
    names = [file.name for file in found.files]
    wanted = weights_file or found.single
    tensors = safetensors.weight_names(names)
    if found.single is None and weights_file is None and tensors:
        return _safetensors(found, tensors)
    if any(name.endswith(".gguf") for name in names):
        return _gguf(found, names, wanted)
    if tensors:
        return _safetensors(found, tensors)
    pickled = [file for file in found.files if file.name.endswith(_PICKLED)]
    return Contents(
        format="unknown",
        weights_bytes=sum(file.size_bytes for file in pickled),
        attention_refused="neither safetensors nor GGUF files were found",
    )


def _gguf(found: ModelFiles, names: list[str], wanted: str | None) -> Contents:
    try:
        choice = choose_gguf(names, wanted)
        assert choice is not None
    except UnclearModel as error:
        ggufs = [file for file in found.files if file.name.endswith(".gguf")]
        return Contents(
            format="gguf",
            weights_bytes=sum(file.size_bytes for file in ggufs),
            attention_refused=str(error),
        )
    weights_bytes = sum(
        file.size_bytes for file in found.files if file.name in frozenset(choice.shards)
    )
    return _gguf_header(found, choice, weights_bytes)


def _gguf_header(found: ModelFiles, choice: GgufChoice, weights_bytes: int) -> Contents:
    first = found.named(choice.first)
    assert first is not None
    contents = Contents(format="gguf", weights_bytes=weights_bytes, weights_file=choice.first)
    with open(open_same(first), "rb") as file:
        try:
            header = gguf.read_header(file)
            contents = attrs.evolve(contents, model_type=header.architecture or None)
            return attrs.evolve(contents, attention=gguf.attention_of(header))
        except HeaderError as error:
            return attrs.evolve(contents, attention_refused=f"{choice.first}: {error}")
        except OSError as error:
            raise _io_error(first, error) from error


def _safetensors(found: ModelFiles, names: tuple[str, ...]) -> Contents:
    weights_bytes = 0
    troubles: list[str] = []
    for name in _loaded_names(found, names, troubles):
        file = found.named(name)
        assert file is not None
        try:
            weights_bytes += _tensor_bytes(file)
        except HeaderError as error:
            weights_bytes += file.size_bytes
            troubles.append(f"{name}: {error}")
    attention, hybrid, model_type, quantization = None, None, None, None
    try:
        config = _read_json(found, "config.json")
        model_type = safetensors.model_type_of(config)
        quantization = safetensors.quantization_of(config)
        hybrid = None if troubles else hybrids.hybrid_of(config)
        attention = safetensors.attention_of(config)
    except HeaderError as error:
        troubles.append(str(error))
    return Contents(
        format="safetensors",
        weights_bytes=weights_bytes,
        attention=None if troubles else attention,
        attention_refused="; ".join(troubles) or None,
        hybrid=hybrid,
        model_type=model_type,
        quantization=quantization,
        template=_template(found),
    )


def _template(found: ModelFiles) -> TemplateMarks | None:
    """What is written in the first file that holds a chat template; None where none does."""
    for name in templates.FILES:
        text = _read_text(found, name)
        if text is None:
            continue
        config: dict[str, object] = {}
        if name.endswith(".json"):
            try:
                config = safetensors.read_json(text, name)
            except HeaderError:
                continue
        template = templates.template_in(name, text.decode(errors="replace"), config)
        if template is not None:
            return templates.marks_of(template)
    return None


def _loaded_names(
    found: ModelFiles, names: tuple[str, ...], troubles: list[str]
) -> tuple[str, ...]:
    """The shards that the index names, where there is one; else every safetensors file."""
    if found.named(_INDEX) is None:
        return names
    try:
        indexed = safetensors.indexed_names(_read_json(found, _INDEX))
    except HeaderError as error:
        troubles.append(str(error))
        return names
    missing = sorted(indexed - {file.name for file in found.files})
    if missing:
        troubles.append(f"{len(missing)} of {len(indexed)} shards missing, first {missing[0]:.200}")
    present = tuple(name for name in names if name in indexed)
    return present or names


def _tensor_bytes(file: ModelFile) -> int:
    with open(open_same(file), "rb") as opened:
        try:
            return safetensors.read_weights_bytes(opened, file.size_bytes)
        except OSError as error:
            raise _io_error(file, error) from error


def _read_json(found: ModelFiles, name: str) -> dict[str, object]:
    text = _read_text(found, name)
    if text is None:
        raise HeaderError(f"there is no {name}")
    if len(text) > safetensors.CONFIG_BYTES_MAX:
        raise HeaderError(f"{name} is larger than {safetensors.CONFIG_BYTES_MAX} bytes")
    return safetensors.read_json(text, name)


def _read_text(found: ModelFiles, name: str) -> bytes | None:
    """A file's content, one byte beyond the bound at most; None where there is no such file."""
    file = found.named(name)
    if file is None:
        return None
    with open(open_same(file), "rb") as opened:
        try:
            return opened.read(safetensors.CONFIG_BYTES_MAX + 1)
        except OSError as error:
            raise _io_error(file, error) from error


def _io_error(file: ModelFile, error: OSError) -> Unmeasurable:
    return Unmeasurable(
        "io_error", f"{file.name}: {error.strerror or os.strerror(error.errno or 0)}"
    )
