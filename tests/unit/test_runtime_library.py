"""Which runtime library is taken, and what is said when there is none."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from pyvlm import _runtime_library
from pyvlm.errors import PyvlmError


def test_find_takes_the_library_that_the_default_extension_links():
    path = Path(_runtime_library.find())
    assert path.is_file()
    extensions = list((path.parent.parent / "_shortfin_default").glob("lib*.so"))
    linked = {name for file in extensions for name in _runtime_library.needed_libraries(file)}
    assert path.name in linked
    tracy = list((path.parent.parent / "_shortfin_tracy").glob("lib*.so"))
    traced = {name for file in tracy for name in _runtime_library.needed_libraries(file)}
    assert path.name not in traced


def test_needed_libraries_of_the_interpreter_include_libc():
    assert any(
        name.startswith("libc.so")
        for name in _runtime_library.needed_libraries(Path(sys.executable).resolve())
    )


@pytest.mark.parametrize("contents", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100])
def test_needed_libraries_of_a_broken_file_are_none(tmp_path, contents):
    path = tmp_path / "broken.so"
    path.write_bytes(contents)
    assert _runtime_library.needed_libraries(path) == []


@pytest.mark.parametrize("package", _runtime_library.REQUIRED_PACKAGES)
def test_missing_package_is_named_with_the_command(monkeypatch, package):
    real = metadata.version

    def version(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(PyvlmError) as caught:
        _runtime_library.find()
    assert caught.value.code == "runtime_missing"
    assert f"package {package} 3.9.0 is not installed" in caught.value.message
    assert "pip install shortfin==3.9.0" in caught.value.message


def test_other_version_is_named(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "3.13.0" if name == "shortfin" else real(name)
    )
    with pytest.raises(PyvlmError) as caught:
        _runtime_library.find()
    assert "shortfin has version 3.13.0, pyvlm needs 3.9.0" in caught.value.message


def test_distribution_without_the_library_is_an_error(monkeypatch):
    class Empty:
        version = "3.9.0"
        files = ()

    monkeypatch.setattr(metadata, "distribution", lambda _: Empty())
    with pytest.raises(PyvlmError) as caught:
        _runtime_library.find()
    assert caught.value.code == "runtime_missing"
