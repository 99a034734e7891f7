"""The tools around the measurements: tables, limits, what others print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import quiet, tables
from bench.growth import Curve
from bench.limits import Work
from bench.systems import llama_cpp
from bench.systems.base import ChildError, Context, peak_pss_mib, run_child
from bench.systems.llama_cpp import LlamaCpp

SMOLVLM = {
    "scale_factor": 4,
    "text_config": {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49280,
    },
    "vision_config": {
        "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072,
        "image_size": 512, "patch_size": 16,
    },
}  # fmt: skip
LIMITS = {"fma_gflops": 180.0, "read_gb_s": 30.0}


def record(system: str, turn: int, foreign: float = 1.0, **values: float) -> dict[str, Any]:
    return {"system": system, "round": turn, "foreign_percent": foreign, "values": values}


RECORDS = [
    record("pyvlm f16", 0, decode_b1=90.0, image_tile=1500.0),
    record("llama.cpp F16", 0, decode_b1=60.0, image_tile=1800.0),
    record("llama.cpp Q4_0", 0, decode_b1=70.0),
    record("llama.cpp Q4_0", 1, decode_b1=80.0, foreign=4.0),
    record("llama.cpp F16", 1, decode_b1=50.0, image_tile=1600.0),
    record("pyvlm f16", 1, decode_b1=100.0, image_tile=1600.0),
]


def test_medians_and_ranges() -> None:
    cell = tables.cells(RECORDS)["decode_b1"]["llama.cpp Q4_0"]
    assert (cell["median"], cell["low"], cell["high"], cell["rounds"]) == (75, 70, 80, 2)
    assert cell["foreign_percent"] == 4.0


def test_best_peer_is_not_ours_and_follows_the_direction() -> None:
    cells = tables.cells(RECORDS)
    assert tables.best_peer("decode_b1", cells["decode_b1"]) == "llama.cpp Q4_0"
    assert tables.best_peer("image_tile", cells["image_tile"]) == "llama.cpp F16"
    assert tables.best_peer("decode_b1", {"pyvlm f16": {"median": 1.0}}) is None


def test_ratios_are_within_a_round_and_above_one_if_faster() -> None:
    found = tables.ratios("decode_b1", "pyvlm f16", "llama.cpp Q4_0", RECORDS)
    assert found == pytest.approx([90 / 70, 100 / 80])
    found = tables.ratios("image_tile", "pyvlm f16", "llama.cpp F16", RECORDS)
    assert found == pytest.approx([1800 / 1500, 1.0])


def test_markdown_says_what_was_not_measured(tmp_path: Path) -> None:
    lines = tables.markdown(RECORDS).splitlines()
    assert lines[0].startswith("| work | pyvlm f16 | llama.cpp F16 | llama.cpp Q4_0 |")
    image = next(line for line in lines if "image encode" in line)
    assert "| not measured |" in image
    assert "1.10 (1.00-1.20) llama.cpp F16" in image
    pytest.importorskip("matplotlib")
    tables.write_plot(RECORDS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_limits_of_the_known_shape() -> None:
    """Against figures worked out by hand for SmolVLM-256M."""
    work = Work.of(SMOLVLM)
    assert work.weights == pytest.approx(134.6e6, rel=2e-3)
    assert work.tile_flop == pytest.approx(215e9, rel=0.01)
    assert work.tile_ms(LIMITS) == pytest.approx(1190, rel=0.01)
    assert work.decode_per_s(1, 512, LIMITS, 2) == pytest.approx(107, rel=0.01)
    assert work.prefill_per_s(512, LIMITS) == pytest.approx(782, rel=0.02)


def test_quiet_sees_foreign_work_and_not_its_own() -> None:
    before = quiet.CpuTimes.now()
    while quiet.CpuTimes.now().own - before.own < 0.3:
        pass
    share = quiet.share_since(before)
    own = quiet.CpuTimes.now().own - before.own
    total = quiet.CpuTimes.now().busy - before.busy
    assert share.foreign <= 100 * (total - own) / share.seconds + 15
    assert quiet.wait_until_quiet(100.0 * (os.cpu_count() or 1) + 50, 0, window_s=0.05)
    assert not quiet.wait_until_quiet(-1.0, 0, window_s=0.05)


def test_children_that_fail_are_named() -> None:
    with pytest.raises(ChildError, match="no such thing"):
        run_child([sys.executable, "-c", "raise SystemExit('no such thing')"], threads=1)
    with pytest.raises(ChildError, match="status 3"):
        peak_pss_mib([sys.executable, "-c", "raise SystemExit(3)"], threads=1)


def test_peak_memory_of_a_child() -> None:
    """It has ended when we look last: the peak was seen while it ran."""
    code = "import time; x = bytearray(64 << 20); time.sleep(1)"
    assert 64 < peak_pss_mib([sys.executable, "-c", code], threads=1) < 120


BATCHED = """\
build: 1
{"n_kv": 576, "pp": 512, "tg": 64, "pl": 1, "speed_pp": 500.0, "speed_tg": 60.5}
{"n_kv": 4608, "pp": 512, "tg": 64, "pl": 8, "speed_pp": 480.0, "speed_tg": 120.0}
"""
BENCH = """\
{"n_prompt": 96, "samples_ts": [560.0, 570.0, 500.0]}
{"n_prompt": 512, "samples_ts": [550.0]}
"""
ENCODED = "\n".join(f"mtmd batch encoding done in {time} ms" for time in (2100, 1700, 1800))


@pytest.fixture
def tool(tmp_path: Path) -> LlamaCpp:
    """Tools that print what the real ones were seen to print."""
    (tmp_path / "bin").mkdir()
    for name, text in (("batched-bench", BATCHED), ("bench", BENCH), ("mtmd-cli", ENCODED)):
        path = tmp_path / "bin" / f"llama-{name}"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)
    checkpoint = tmp_path / "checkpoint"
    return LlamaCpp(Context(checkpoint, checkpoint, tmp_path, 2, tmp_path, sys.executable), "F16")


def test_what_llama_cpp_prints(tool: LlamaCpp) -> None:
    assert tool.measure("decode") == {"decode_b1": 60.5, "decode_b8": 120.0}
    assert tool.measure("prefill") == {"prefill_96": 560.0, "prefill_512": 550.0}
    assert tool.measure("image") == {"image_tile": 1750.0}


def test_no_llama_cpp() -> None:
    context = Context(Path("c"), Path("c"), Path("f"), 2, None, sys.executable)
    with pytest.raises(ChildError, match="--llama-cpp"):
        LlamaCpp(context, "F16").measure("decode")


def test_build_script_is_sound_shell() -> None:
    script = Path(llama_cpp.__file__).parent.parent / "build_llama_cpp.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)


def test_exponents() -> None:
    def exponent(power: float) -> float | None:
        return Curve("", "", "", [(x, 3.0 * x**power) for x in (1, 2, 4, 8)]).exponent

    assert exponent(0) == pytest.approx(0, abs=1e-9)
    assert exponent(1) == pytest.approx(1)
    assert exponent(2) == pytest.approx(2)
    assert Curve("", "", "", [(0, 1.0), (0, 2.0)]).exponent is None
