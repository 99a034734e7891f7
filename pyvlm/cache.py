"""Bundles in the user's cache directory: one builder at a time, published whole or not at all.

    root/bundles/<key>/   published by rename, never written afterwards
    root/tmp/<key>.XXXX/  being built; left behind only by a killed process, removed by the next
    root/locks/<key>      flock while one process builds; freed by the kernel when it dies
    root/digests/<key>    digest of a checkpoint's files, by path, size and time

The directories are made with mode 0700. Before anything in them is read or written they must
belong to us and be writable by nobody else: a program is code that we run.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyvlm.errors import PyvlmError
from pyvlm.weights.source import TensorSource

ENVIRONMENT = "PYVLM_CACHE_DIR"
_FOLDERS = ("bundles", "tmp", "locks", "digests")
_ANOTHER = f"set {ENVIRONMENT} to a directory of your own"
_POLL_S = 0.05
_SPARE_BYTES = 32 << 20  # free space beyond what a bundle needs: manifest, program, journal


def default_root() -> Path:
    """PYVLM_CACHE_DIR, or pyvlm in the user's cache directory."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "pyvlm"


class Cache:
    """Safe to use from any number of processes at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root

    def path(self, key: str) -> Path:
        return self.root / "bundles" / key

    def find(self, key: str) -> Path | None:
        """The published bundle, if there is one; its content is not looked at."""
        path = self.path(key)
        return path if self._is_trusted(path.parent) and self._is_trusted(path) else None

    def publish(
        self,
        key: str,
        build: Callable[[Path], None],
        is_good: Callable[[Path], bool],
        *,
        num_bytes: int = 0,
        waiting: Callable[[float], None] | None = None,
    ) -> Path:
        """The bundle `key`, built by us or by the process that held the lock before us.

        `build` fills an empty directory. `is_good` judges a published one; a bad one is replaced.
        `waiting` is called while another process builds.
        """
        target = self.path(key)
        with _typed(self.root):
            self._prepare()
            with self._lock(key, waiting):
                if self._is_trusted(target) and is_good(target):
                    return target
                self._sweep(key)
                self._require_space(num_bytes)
                folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=self.root / "tmp"))
                try:
                    build(folder)
                    self._swap(folder, target, key)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
        return target

    def digest(self, source: TensorSource) -> str:
        """`source.digest()`, remembered as long as the files keep their size and time."""
        identity = [list(entry) for entry in source.identity()]
        key = hashlib.sha256(json.dumps([e[0] for e in identity]).encode()).hexdigest()[:32]
        note = self.root / "digests" / key
        if self._is_trusted(note.parent) and (known := _read_note(note, identity)) is not None:
            return known
        digest = source.digest()
        with _typed(self.root):
            self._prepare()
            _write_atomically(note, json.dumps({"identity": identity, "sha256": digest}))
        return digest

    def check(self) -> None:
        """cache_unusable if a directory that is there already is not ours alone."""
        for name in _FOLDERS:
            self._is_trusted(self.root / name)

    def _prepare(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _FOLDERS:
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        self.check()

    def _is_trusted(self, folder: Path) -> bool:
        """False if it or the root does not exist; an error if anyone else may write there."""
        return _is_private(self.root) and _is_private(folder)

    @contextmanager
    def _lock(self, key: str, waiting: Callable[[float], None] | None) -> Iterator[None]:
        path = self.root / "locks" / key
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        start = time.monotonic()
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if waiting is not None:
                        waiting(time.monotonic() - start)
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(handle)  # frees the lock

    def _sweep(self, key: str) -> None:
        """What killed builders of this key left; we hold its lock, so nobody else is at it."""
        for left in (self.root / "tmp").glob(f"{key}.*"):
            shutil.rmtree(left)

    def _swap(self, folder: Path, target: Path, key: str) -> None:
        sync_directory(folder)
        if target.exists():  # bad: out of the way first, a rename cannot replace a full directory
            target.rename(self.root / "tmp" / f"{key}.bad")
        folder.rename(target)
        _sync(target.parent)
        self._sweep(key)

    def _require_space(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < num_bytes + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, f"{num_bytes >> 20} MiB needed, {free >> 20} MiB free")


def _is_private(folder: Path) -> bool:
    try:
        found = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PyvlmError(
            f"cannot look at {folder}: {error.strerror}; {_ANOTHER}", code="cache_unusable"
        ) from error
    if found.st_uid != os.geteuid():
        problem, cure = f"belongs to user {found.st_uid}", ""
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem, cure = "can be written by other users", f"run: chmod go-w {folder}, or "
    else:
        return True
    raise PyvlmError(
        f"{folder} {problem}, so what lies there is not trusted; {cure}{_ANOTHER}",
        code="cache_unusable",
    )


def _read_note(note: Path, identity: Sequence[object]) -> str | None:
    try:
        known = json.loads(note.read_text())
        if known["identity"] == identity and isinstance(known["sha256"], str):
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def publish_directory(target: Path, build: Callable[[Path], None], marker: str) -> None:
    """Builds beside `target` and renames; replaces a directory only if it holds `marker`."""
    target = target.absolute()
    if target.exists() and not (target / marker).is_file():
        is_empty = target.is_dir() and not any(target.iterdir())
        if not is_empty:
            raise PyvlmError(
                f"{target} exists and is no bundle; name another directory",
                code="invalid_parameter",
                param="output",
            )
    with _typed(target.parent, advice="choose another --output"):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            build(folder)
            folder.chmod(0o755)
            sync_directory(folder)
            old = folder.with_name(f"{folder.name}.old")
            if target.exists():
                target.rename(old)
            folder.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sync_directory(folder: Path) -> None:
    """Everything in it on disk, so that a rename never publishes what a crash then loses."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_atomically(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _typed(
    path: Path, advice: str = f"set {ENVIRONMENT} to a writable directory"
) -> Iterator[None]:
    """OSError of our writing below `path` -> cache_unusable that says where, why and what to do.

    An error that names a file elsewhere is not ours: it passes as it is.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _is_related(Path(os.fsdecode(error.filename)), path):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free some space, or {advice}"
        reason = error.strerror or str(error)
        place = error.filename or path
        raise PyvlmError(
            f"cannot write to {place}: {reason}; {advice}", code="cache_unusable"
        ) from error


def _is_related(place: Path, root: Path) -> bool:
    """Below the root, or one of its parents, which are made with it."""
    return place.is_relative_to(root) or root.is_relative_to(place)
