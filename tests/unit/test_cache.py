"""The cache directory: one builder, whole bundles or none, and disks that refuse."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from pyvlm import cache as cache_module
from pyvlm.cache import Cache, default_root, publish_directory
from pyvlm.errors import PyvlmError

FORK = multiprocessing.get_context("fork")


def fill(folder: Path) -> None:
    (folder / "manifest.json").write_text("whole")


def is_whole(path: Path) -> bool:
    file = path / "manifest.json"
    return file.is_file() and file.read_text() == "whole"


def test_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYVLM_CACHE_DIR", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("PYVLM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg/pyvlm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache/pyvlm"


def test_published_once_and_private(tmp_path: Path) -> None:
    cache, builds = Cache(tmp_path / "c"), []

    def build(folder: Path) -> None:
        builds.append(folder)
        fill(folder)

    paths = {cache.publish("k", build, is_whole) for _ in range(3)}
    assert paths == {tmp_path / "c/bundles/k"}
    assert len(builds) == 1
    for folder in (tmp_path / "c", *(tmp_path / "c").iterdir(), cache.path("k")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert not list((tmp_path / "c/tmp").iterdir())


def test_failed_build_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def build(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("compiler fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        cache.publish("k", build, is_whole)
    assert not cache.path("k").exists()
    assert not list((tmp_path / "tmp").iterdir())


def test_damaged_bundle_is_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (cache.publish("k", fill, is_whole) / "manifest.json").write_text("tru")
    assert is_whole(cache.publish("k", fill, is_whole))
    assert not list((tmp_path / "tmp").iterdir())


def _race(root: Path, log: Path, barrier: Any) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        fill(folder)

    barrier.wait()
    waits: list[float] = []
    path = Cache(root).publish("k", build, is_whole, waiting=waits.append)
    with log.open("a") as file:
        file.write(f"{'waited' if waits else 'went first'} {is_whole(path)}\n")


def test_racing_processes_build_once_and_all_get_the_bundle(tmp_path: Path) -> None:
    log, barrier = tmp_path / "log", FORK.Barrier(3)
    children = [FORK.Process(target=_race, args=(tmp_path / "c", log, barrier)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    lines = sorted(log.read_text().splitlines())
    assert lines == ["built", "waited True", "waited True", "went first True"]


def _die(root: Path, stage: str) -> None:
    def build(folder: Path) -> None:
        fill(folder)
        if stage == "building":
            os.kill(os.getpid(), signal.SIGKILL)

    if stage == "publishing":
        cache_module.sync_directory = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    Cache(root).publish("k", build, lambda _: False)


@pytest.mark.parametrize("stage", ["building", "publishing"])
@pytest.mark.parametrize("is_published", [False, True])
def test_killed_builder_leaves_the_lock_free_and_its_rest_is_swept(
    tmp_path: Path, stage: str, is_published: bool
) -> None:
    cache = Cache(tmp_path)
    if is_published:
        cache.publish("k", fill, is_whole)
    child = FORK.Process(target=_die, args=(tmp_path, stage))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert cache.path("k").exists() is is_published
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    assert is_whole(cache.publish("k", fill, lambda _: False))
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/pyvlm-cache"])
def test_unusable_place_is_named_with_advice(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("in the way")
    root = tmp_path / where
    with pytest.raises(PyvlmError, match="PYVLM_CACHE_DIR") as info:
        Cache(root).publish("k", fill, is_whole)
    assert info.value.code == "cache_unusable"
    assert str(root) in info.value.message or str(tmp_path / "file") in info.value.message


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left.*free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EROFS, "Read-only"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_disk_that_refuses_in_mid_build(tmp_path: Path, number: int, words: str) -> None:
    cache = Cache(tmp_path)

    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(number, os.strerror(number), str(folder / "weights.irpa"))

    with pytest.raises(PyvlmError, match=words) as info:
        cache.publish("k", build, is_whole)
    assert info.value.code == "cache_unusable"
    assert "weights.irpa" in info.value.message
    assert not cache.path("k").exists()
    assert not list((tmp_path / "tmp").iterdir())


def test_too_little_space_is_found_before_building(tmp_path: Path) -> None:
    def build(_: Path) -> None:
        raise AssertionError("must not start")

    with pytest.raises(PyvlmError, match=r"MiB needed.*free some space"):
        Cache(tmp_path).publish("k", build, is_whole, num_bytes=1 << 60)


def test_directory_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(tmp_path).publish("k", fill, is_whole)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PyvlmError, match="belongs to user"):
        Cache(tmp_path).publish("k2", fill, is_whole)


@pytest.mark.parametrize("folder", [".", "bundles", "bundles/k"])
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_bundle_that_others_could_have_written_is_not_found(
    tmp_path: Path, folder: str, mode: int
) -> None:
    cache = Cache(tmp_path / "c")
    assert cache.find("k") is None
    cache.publish("k", fill, is_whole)
    assert cache.find("k") == cache.path("k")
    place = cache.root / folder
    place.chmod(mode)
    for attempt in (lambda: cache.find("k"), lambda: cache.publish("k", fill, is_whole)):
        with pytest.raises(PyvlmError, match=f"chmod go-w {place},.*PYVLM_CACHE_DIR") as info:
            attempt()
        assert info.value.code == "cache_unusable"
    place.chmod(0o700)
    assert cache.find("k") == cache.path("k")


def test_a_bundle_of_another_user_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    cache.publish("k", fill, is_whole)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PyvlmError, match=f"{tmp_path} belongs to user .*PYVLM_CACHE_DIR") as info:
        cache.find("k")
    assert info.value.code == "cache_unusable"


def test_error_about_a_file_elsewhere_is_not_called_a_failed_write(tmp_path: Path) -> None:
    def build(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(tmp_path / "model/model.safetensors"))

    with pytest.raises(OSError, match="Input/output") as info:
        Cache(tmp_path / "c").publish("k", build, is_whole)
    assert not isinstance(info.value, PyvlmError)


class Source:
    """Files whose digest is counted."""

    def __init__(self, file: Path) -> None:
        self.file, self.num_digests = file, 0

    def digest(self) -> str:
        self.num_digests += 1
        return self.file.read_text()

    def identity(self) -> tuple[tuple[str, int, int], ...]:
        stat = self.file.stat()
        return ((str(self.file), stat.st_size, stat.st_mtime_ns),)


def test_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, cache = tmp_path / "w", Cache(tmp_path / "c")
    file.write_text("one")
    source: Any = Source(file)
    assert [cache.digest(source) for _ in range(3)] == ["one"] * 3
    assert source.num_digests == 1
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert cache.digest(source) == "two"
    for note in (tmp_path / "c/digests").iterdir():
        note.write_text("[]")
    assert cache.digest(source) == "two"
    assert source.num_digests == 3


def test_digest_note_that_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    file, cache = tmp_path / "w", Cache(tmp_path / "c")
    file.write_text("one")
    source: Any = Source(file)
    cache.digest(source)
    (cache.root / "digests").chmod(0o777)
    with pytest.raises(PyvlmError, match=r"c/digests can be written by other users") as info:
        cache.digest(source)
    assert info.value.code == "cache_unusable"


def test_output_directory_is_replaced_only_if_it_is_a_bundle(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    publish_directory(target, fill, "manifest.json")  # an empty directory is fine
    assert is_whole(target)
    (target / "old").write_text("x")
    publish_directory(target, fill, "manifest.json")
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json"]
    other = tmp_path / "photos"
    other.mkdir()
    (other / "a.png").write_text("x")
    with pytest.raises(PyvlmError, match="is no bundle") as info:
        publish_directory(other, fill, "manifest.json")
    assert (info.value.code, info.value.param) == ("invalid_parameter", "output")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PyvlmError, match="--output"):
        publish_directory(tmp_path / "file/out", fill, "manifest.json")
