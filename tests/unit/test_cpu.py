"""CPU features: the host's list, and what a program asks for beyond it."""

from __future__ import annotations

from pathlib import Path

from pyvlm.compile import CompileOptions, target_features
from pyvlm.cpu import host_features, missing_features, relevant_features

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
flags\t\t: fpu vme sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c bmi1 avx2 bmi2
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu
"""


def test_flags_are_read_under_llvm_names(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    features = host_features(path)
    assert {"+sse3", "+sse4.1", "+bmi", "+avx2", "+f16c"} <= set(features)
    assert "+avx512f" not in features
    assert list(features) == sorted(features)


def test_missing_features_are_those_the_host_lacks(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert missing_features(["+avx2", "+avx512f", "+bmi"], path) == ("+avx512f",)
    assert missing_features(["+avx2", "+sse4.1"], path) == ()
    assert missing_features(["+no-such-feature"]) == ("+no-such-feature",)


def test_features_without_effect_on_code_are_dropped() -> None:
    assert relevant_features(["+avx2", "+clzero", "+64bit", "-avx512f", "+avx2"]) == ("+avx2",)


def test_a_feature_newer_than_the_tables_is_needed(tmp_path: Path) -> None:
    assert relevant_features(["+avx2", "+avx99-fast.1"]) == ("+avx2", "+avx99-fast.1")
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert missing_features(["+avx99-fast.1"], path) == ("+avx99-fast.1",)
    path.write_text(CPUINFO.replace(" avx ", " avx avx99_fast_1 "))
    assert missing_features(["+avx99-fast.1"], path) == ()


def test_a_program_compiled_here_runs_here() -> None:
    needed = relevant_features(target_features())
    assert needed
    assert missing_features(needed) == ()


def test_a_portable_target_needs_less_and_a_newer_one_more() -> None:
    portable = relevant_features(target_features(CompileOptions(target_cpu="x86-64")))
    newer = relevant_features(target_features(CompileOptions(target_cpu="sapphirerapids")))
    assert "+avx2" not in portable
    assert {"+avx512f", "+amx-int8"} <= set(newer)
    assert not set(newer) <= set(portable)
