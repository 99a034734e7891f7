"""What a bundle needs in memory, against what this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyvlm.emit.layout import Lowering, qkv_rows
from pyvlm.errors import PyvlmError
from pyvlm.models.config import ModelConfig, Quantize, VisionConfig

_BYTES = {"f16": 2, "f32": 4}
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose. Weights are mapped, but every step reads all of them."""

    kv: int
    weights: int
    images: int = 0  # the largest picture: its patches, and the tower's rows for the decoder
    activations: int = 0  # of the largest step
    slab: int = 0  # pictures on their way from the preprocessing workers
    image_cache: int = 0

    @property
    def total(self) -> int:
        engine = self.kv + self.weights + self.images + self.activations
        return engine + self.slab + self.image_cache


@dataclass(frozen=True, slots=True)
class Workload:
    """What beside the model decides the need."""

    lowering: Lowering
    num_slots: int
    capacity: int
    kv_dtype: str
    chunk: int  # tokens of a prefill step
    all_logits: bool
    archive_bytes: int
    quantize: Quantize = "none"


def memory_need(model: ModelConfig, w: Workload, num_tiles: int) -> MemoryNeed:
    """An estimate from above of what a program holds at once; `num_tiles` of the largest picture.

    Generated code packs the matrices at load, beside the archive: they count twice. Quantised ones
    it widens when it comes to them.
    """
    d, v = model.decoder, model.vision
    kv = kv_bytes(
        layers=d.num_layers,
        slots=w.num_slots,
        kv_heads=d.num_kv_heads,
        capacity=w.capacity,
        head_dim=d.head_dim,
        dtype=w.kv_dtype,
    )
    images = 0
    if v is not None:
        per_tile = v.num_patches * v.patch_dim + v.rows_per_tile * d.hidden_size
        images = num_tiles * per_tile * _BYTES["f32"]
    return MemoryNeed(
        kv=kv,
        weights=w.archive_bytes * (2 if _packs_at_load(w) else 1),
        images=images,
        activations=max(_decoder_step(model, w), 0 if v is None else _encoder_step(v, w)),
    )


def _packs_at_load(w: Workload) -> bool:
    return w.lowering == "codegen" and w.quantize == "none"


def _decoder_step(model: ModelConfig, w: Workload) -> int:
    """A prefill chunk or a decode step: rows through one layer, then logits."""
    d, rows = model.decoder, max(w.chunk, w.num_slots)
    heads = d.num_heads * d.head_dim
    per_row = 2 * d.hidden_size + qkv_rows(d) + heads + 3 * d.intermediate_size
    if w.lowering == "codegen":  # scores and their weights are tensors there
        per_row += 2 * d.num_heads * w.capacity
    per_row += _scratch(d.intermediate_size, w)
    num_logits = d.vocab_size * (rows if w.all_logits else w.num_slots)
    largest = d.vocab_size * d.hidden_size if w.quantize != "none" else 0
    widened = largest if w.lowering == "codegen" else 0
    return (rows * per_row + num_logits + widened) * _BYTES["f32"]


def _encoder_step(v: VisionConfig, w: Workload) -> int:
    """One tile through one layer of the tower."""
    per_patch = 2 * v.hidden_size + 3 * v.hidden_size + v.hidden_size + v.intermediate_size
    if w.lowering == "codegen":
        per_patch += 2 * v.num_heads * v.num_patches
    per_patch += _scratch(v.intermediate_size, w)
    return v.num_patches * per_patch * _BYTES["f32"]


def _scratch(width: int, w: Workload) -> int:
    """Of a row's int16 inputs in the kernels, in units of f32."""
    return -(-width // 2) if w.lowering == "kernels" and w.quantize != "none" else 0


def kv_bytes(
    *, layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int, dtype: str
) -> int:
    """Both buffers, keys and values."""
    return 2 * layers * slots * kv_heads * capacity * head_dim * _BYTES[dtype]


def check_memory(need: MemoryNeed, available: int | None = None) -> None:
    """Raises out_of_memory, naming what can be lowered, if `need` does not fit."""
    available = available_bytes() if available is None else available
    if need.total <= available:
        return
    parts = f"KV cache {_mib(need.kv)}, weights {_mib(need.weights)}"
    if need.images:
        parts += f", images {_mib(need.images)}"
    if need.activations:
        parts += f", activations {_mib(need.activations)}"
    if need.slab:
        parts += f", preprocessing slab {_mib(need.slab)}"
    if need.image_cache:
        parts += f", image cache {_mib(need.image_cache)}"
    raise PyvlmError(
        f"the model needs {_mib(need.total)} of memory ({parts}), {_mib(available)} are "
        "available; lower --max-num-seqs or --max-model-len",
        code="out_of_memory",
    )


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The smaller of the machine's available memory and what any control group leaves us."""
    found = [_mem_available(proc / "meminfo"), *_cgroup_rooms(proc / "self/cgroup", cgroup)]
    return max(0, min(found))


def _mem_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return _UNLIMITED


def _cgroup_rooms(membership: Path, root: Path) -> Iterator[int]:
    """Limit minus use of our group and of each one above it; version 2, then version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield from _rooms(root, group, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(root / "memory", group, *files)


def _rooms(root: Path, group: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    folder = root / group.lstrip("/")
    while True:
        maximum, used = _number(folder / limit), _number(folder / usage)
        if maximum is not None and used is not None and maximum < _UNLIMITED:
            yield maximum - used + _statistic(folder / "memory.stat", cache)
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _statistic(path: Path, name: str) -> int:
    """Clean page cache: counted as used, given back when needed."""
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
