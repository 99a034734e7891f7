"""Memory: what is needed, what is available under control groups, and the refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.memory import (
    MemoryNeed,
    Workload,
    available_bytes,
    check_memory,
    kv_bytes,
    memory_need,
)
from pyvlm.models.parse import parse_config
from tests.unit.test_config import LLAMA, SMOLVLM

MIB = 1 << 20


def machine(tmp_path: Path, available_kib: int, membership: str) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroup.mkdir()
    meminfo = f"MemTotal: 99999999 kB\nMemAvailable:  {available_kib} kB\n"
    (proc / "meminfo").write_text(meminfo)
    (proc / "self/cgroup").write_text(membership)
    return proc, cgroup


def limit_v2(group: Path, maximum: str, current: int, inactive_file: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{maximum}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def test_without_groups_it_is_the_machine_s(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, 1000, "0::/\n")
    assert available_bytes(proc, cgroup) == 1000 * 1024


def test_the_tightest_group_above_us_counts_and_its_cache_does_not(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, 1 << 22, "0::/outer/inner\n")
    limit_v2(cgroup / "outer", str(100 * MIB), 80 * MIB, inactive_file=10 * MIB)
    limit_v2(cgroup / "outer/inner", "max", 70 * MIB)
    assert available_bytes(proc, cgroup) == 30 * MIB
    limit_v2(cgroup / "outer/inner", str(75 * MIB), 70 * MIB)
    assert available_bytes(proc, cgroup) == 5 * MIB


def test_limit_seen_from_inside_a_container(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, 1 << 22, "0::/not/visible/here\n")
    limit_v2(cgroup, str(64 * MIB), 60 * MIB)
    assert available_bytes(proc, cgroup) == 4 * MIB


def test_version_1_limit_and_its_no_limit(tmp_path: Path) -> None:
    membership = "5:cpu,memory:/job\n4:pids:/job\n"
    proc, cgroup = machine(tmp_path, 1 << 20, membership)
    job = cgroup / "memory/job"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text(str(50 * MIB))
    (job / "memory.usage_in_bytes").write_text(str(20 * MIB))
    (job / "memory.stat").write_text(f"total_inactive_file {MIB}\n")
    assert available_bytes(proc, cgroup) == 31 * MIB
    (job / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert available_bytes(proc, cgroup) == (1 << 20) * 1024


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, 1 << 20, "0::/\n")
    limit_v2(cgroup, str(10 * MIB), 12 * MIB)
    assert available_bytes(proc, cgroup) == 0


def test_this_machine_has_a_plausible_amount() -> None:
    assert MIB < available_bytes() < 1 << 50


def test_kv_bytes_counts_both_buffers() -> None:
    shape = {"layers": 30, "slots": 8, "kv_heads": 3, "capacity": 1024, "head_dim": 64}
    assert kv_bytes(**shape, dtype="f16") == 2 * 30 * 8 * 3 * 1024 * 64 * 2
    assert kv_bytes(**shape, dtype="f32") == 2 * kv_bytes(**shape, dtype="f16")


WORKLOAD = Workload(
    lowering="kernels",
    num_slots=8,
    capacity=2048,
    kv_dtype="f16",
    chunk=256,
    all_logits=False,
    archive_bytes=1000,
)


def test_generated_code_holds_its_weights_twice_and_scores() -> None:
    model = parse_config(SMOLVLM)
    kernels = memory_need(model, WORKLOAD, 17)
    codegen = memory_need(model, replace(WORKLOAD, lowering="codegen"), 17)
    assert (kernels.weights, codegen.weights) == (1000, 2000)
    scores = 2 * 12 * 1024 * 1024 * 4  # of the tower's heads, and their weights
    assert codegen.activations == kernels.activations + scores
    assert (codegen.kv, codegen.images) == (kernels.kv, kernels.images)


def test_int8_weights_count_once_and_one_matrix_widened() -> None:
    model = parse_config(SMOLVLM)
    int8 = replace(WORKLOAD, quantize="int8")
    plain, kernels = memory_need(model, WORKLOAD, 17), memory_need(model, int8, 17)
    codegen = memory_need(model, replace(int8, lowering="codegen"), 17)
    assert (kernels.weights, codegen.weights) == (1000, 1000)
    assert kernels.activations - plain.activations == 1024 * 3072 * 2  # int16 inputs of a tile
    text = memory_need(parse_config(LLAMA), replace(int8, lowering="codegen"), 0)
    same = memory_need(parse_config(LLAMA), replace(WORKLOAD, lowering="codegen"), 0)
    assert text.activations - same.activations == LLAMA["vocab_size"] * LLAMA["hidden_size"] * 4


def test_images_count_the_largest_picture() -> None:
    model = parse_config(SMOLVLM)
    tile = (1024 * 3 * 16 * 16 + 64 * 576) * 4
    assert memory_need(model, WORKLOAD, 17).images == 17 * tile
    assert memory_need(parse_config(LLAMA), WORKLOAD, 0).images == 0


def test_all_logits_count_for_every_row() -> None:
    model = parse_config(LLAMA)
    few = memory_need(model, WORKLOAD, 0)
    many = memory_need(model, replace(WORKLOAD, all_logits=True), 0)
    assert many.activations - few.activations == (256 - 8) * 128 * 4


def test_refusal_names_parts_and_flags_and_the_boundary_is_exact() -> None:
    need = MemoryNeed(kv=300 * MIB, weights=200 * MIB, images=5 * MIB, activations=7 * MIB)
    check_memory(need, 512 * MIB)
    with pytest.raises(PyvlmError) as info:
        check_memory(need, 512 * MIB - 1)
    assert info.value.code == "out_of_memory"
    parts = ("512 MiB", "300 MiB", "200 MiB", "images 5 MiB", "activations 7 MiB")
    for part in (*parts, "--max-num-seqs", "--max-model-len"):
        assert part in info.value.message
