from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyvlm import diagnosis
from pyvlm.cli import doctor
from pyvlm.cli.main import main
from pyvlm.diagnosis import PILLOW_CURE, Finding
from pyvlm.errors import PyvlmError


def versions(monkeypatch: pytest.MonkeyPatch, **found: str | None) -> None:
    named = {name.replace("_", "-"): version for name, version in found.items()}
    monkeypatch.setattr(diagnosis, "installed_version", named.get)


@pytest.mark.parametrize(
    ("compiler", "runtime", "shortfin", "cure"),
    [
        ("3.9.0", "3.9.0", "3.9.0", ""),
        ("3.13.0", "3.9.0", "3.9.0", "pip install iree-base-compiler==3.9.0"),
        ("3.9.0", None, "3.8.0", "pip install iree-base-runtime==3.9.0 shortfin==3.9.0"),
    ],
)
def test_iree_versions_move_together(monkeypatch, compiler, runtime, shortfin, cure) -> None:
    versions(monkeypatch, iree_base_compiler=compiler, iree_base_runtime=runtime, shortfin=shortfin)
    finding = diagnosis.check_iree_packages()
    assert finding.status == ("broken" if cure else "ok")
    assert finding.cure == cure


def test_pillows_over_each_other_are_named_with_the_cure(monkeypatch) -> None:
    versions(monkeypatch, pillow="13.0.0", pillow_simd="12.1.1.post0")
    finding = diagnosis.check_pillow()
    assert finding.status == "broken"
    assert "over each other" in finding.detail
    assert finding.cure == PILLOW_CURE


def test_one_pillow_is_fine_and_named(monkeypatch) -> None:
    import PIL

    versions(monkeypatch, pillow=PIL.__version__)
    assert diagnosis.check_pillow().status == "ok"
    versions(monkeypatch, pillow_simd=PIL.__version__)
    assert diagnosis.check_pillow().detail.startswith("pillow-simd")
    versions(monkeypatch, pillow="1.0")
    assert diagnosis.check_pillow().status == "broken"


def test_missing_codecs_are_a_warning(monkeypatch) -> None:
    from PIL import features

    monkeypatch.setattr(features, "check", lambda name: name != "webp")
    finding = diagnosis.check_image_formats()
    assert (finding.status, "WEBP" in finding.detail) == ("warning", True)


def test_cpu_without_vectors_is_a_warning(monkeypatch) -> None:
    monkeypatch.delenv("PYVLM_ISA", raising=False)
    assert diagnosis.check_cpu(["+avx2", "+fma", "+f16c"]).status == "ok"
    assert diagnosis.check_cpu(["+avx"]).status == "warning"
    monkeypatch.setenv("PYVLM_ISA", "scalar")
    assert diagnosis.check_cpu(["+avx2", "+fma", "+f16c"]).cure == "unset PYVLM_ISA"


def test_cache_is_measured(monkeypatch, tmp_path: Path) -> None:
    bundle = tmp_path / "bundles" / "a"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_bytes(b" " * (3 << 20))
    monkeypatch.setenv("PYVLM_CACHE_DIR", str(tmp_path))
    finding = diagnosis.check_cache()
    assert finding.status == "ok"
    assert "1 bundles, 3.0 MiB" in finding.detail
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYVLM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert diagnosis.check_cache().status == "broken"


def test_a_core_that_does_not_load_is_broken(monkeypatch) -> None:
    def missing(_name: str) -> None:
        raise PyvlmError("shortfin 3.9.0 is not installed", code="runtime_missing")

    monkeypatch.setattr(diagnosis.importlib, "import_module", missing)
    finding = diagnosis.check_native_core()
    assert finding.status == "broken"
    assert "runtime_missing" in finding.detail
    assert finding.cure


def test_no_check_raises() -> None:
    def failing() -> Finding:
        raise OSError("disk")

    failing.__name__ = "check_some_thing"
    assert diagnosis._guarded(failing).name == "some thing"
    assert diagnosis._guarded(failing).status == "broken"


@pytest.mark.parametrize(("status", "exit_status"), [("ok", 0), ("warning", 0), ("broken", 1)])
def test_exit_status_and_both_outputs(monkeypatch, capsys, status, exit_status) -> None:
    findings = [Finding("one", "ok", "fine"), Finding("two", status, "seen", "do this")]
    monkeypatch.setattr(doctor, "diagnose", lambda: findings)
    assert main(["doctor"]) == exit_status
    assert "-> do this" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == exit_status
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (exit_status == 0)
    assert report["checks"][1] == {
        "name": "two", "status": status, "detail": "seen", "cure": "do this",
    }  # fmt: skip
