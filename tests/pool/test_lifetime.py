"""Start, end, and what is left behind: nothing, whoever dies first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.pool import PreprocessPool, make_preprocessor
from pyvlm.media.pool_inline import InlinePreprocessor
from pyvlm.media.preprocessor import MIB, PoolOptions
from pyvlm.media.worker_process import WorkerProcess, WorkerSetup
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import TINY, WAIT_S, checkpoint, encoded, submit, tiny_vision
from tests.pool.processes import (
    children,
    is_running,
    mapping_slabs,
    open_files,
    stop,
    threads,
    workers_of,
)

ROOT = Path(__file__).parents[2]
SMALL = encoded(40, 40)

HOST = """
import sys, time
sys.path.insert(0, {root!r})
from tests.pool.pictures import TINY, encoded, submit, tiny_vision
from tests.pool.processes import workers_of
from pyvlm.media.pool import make_preprocessor
from pyvlm.media.preprocessor import PoolOptions
pool = make_preprocessor(TINY, tiny_vision(), PoolOptions(num_workers=2, slab_bytes=64 << 20))
pool.start()
jobs = [submit(pool, encoded(300, 300, seed=seed)) for seed in range(4)]
leases = [job.result(60) for job in jobs]
print(*workers_of(), flush=True)
"""
LOAD = """
more = [submit(pool, encoded(600, 600, seed=seed)) for seed in range(20)]
print("under load", flush=True)
time.sleep(600)
"""


@pytest.fixture
def nothing_left(eventually: Eventually) -> Iterator[None]:
    """Descriptors, threads and children are as many after as before."""
    before = open_files(), threads(), len(children())
    shm = set(Path("/dev/shm").iterdir())
    yield
    eventually(lambda: (open_files(), threads(), len(children())) == before)
    assert os.getpid() not in mapping_slabs()
    assert {path for path in Path("/dev/shm").iterdir() if "pyvlm" in path.name} <= shm


@contextlib.contextmanager
def host(*arguments: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program of another process; killed at the end of the test."""
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def its_workers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


# --- in this process ------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("num_workers", [2, 0])
def test_nothing_is_left_after_closing(num_workers: int, eventually: Eventually) -> None:
    options = PoolOptions(num_workers=num_workers, slab_bytes=8 * MIB)
    pool = make_preprocessor(TINY, tiny_vision(), options)
    pool.start()
    assert len(workers_of()) == num_workers
    submit(pool, SMALL).result(WAIT_S).release()
    if num_workers:  # replacements leave nothing either, nor do workers that cannot end
        os.kill(workers_of()[0], signal.SIGKILL)
        eventually(lambda: pool.stats().num_restarts == 1 and pool.stats().num_workers == 2)
        stop(workers_of()[0])
    submit(pool, SMALL)
    pool.close()
    assert workers_of() == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"image_processor_type": "OtherProcessor"}, "model_unsupported", "'OtherProcessor'"),
        ({"image_std": [0.5, 0.5, 0.0]}, "model_invalid", "a deviation is not 0"),
        ({"max_image_size": {"longest_edge": 50}}, "model_invalid", "max_image_size is 50"),
        (None, "model_invalid", "no preprocessor_config.json"),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 0])
def test_start_fails_with_the_reason(
    tmp_path: Path, num_workers: int, settings: dict[str, object] | None, code: str, words: str
) -> None:
    folder = checkpoint(tmp_path, **(settings or {}))
    if settings is None:
        (folder / "preprocessor_config.json").unlink()
    pool = make_preprocessor(folder, tiny_vision(), PoolOptions(num_workers=num_workers))
    with pytest.raises(PyvlmError, match=words) as error:
        pool.start()
    assert error.value.code == code
    pool.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("num_workers", [1, 0])
def test_what_was_closed_starts_no_more(num_workers: int) -> None:
    """As an engine does whose start is given up: the close may come first."""
    pool = make_preprocessor(TINY, tiny_vision(), PoolOptions(num_workers=num_workers))
    pool.close()
    with pytest.raises(PyvlmError) as error:
        pool.start()
    assert error.value.code == "draining"


@pytest.mark.usefixtures("nothing_left")
def test_the_reason_is_the_workers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the files itself: here they change between its look and this process's."""
    good, bad = checkpoint(tmp_path / "good"), checkpoint(tmp_path / "bad", resample=77)
    monkeypatch.setattr(
        "pyvlm.media.pool.read_if_any",
        lambda _, name: json.loads((good / name).read_text()) if (good / name).exists() else {},
    )
    pool = PreprocessPool(bad, tiny_vision(), PoolOptions(num_workers=1, slab_bytes=MIB))
    with pytest.raises(PyvlmError, match="resample 77 is not known"):
        pool.start()
    other = checkpoint(tmp_path / "other", resample=3)
    pool = PreprocessPool(other, tiny_vision(), PoolOptions(num_workers=1, slab_bytes=MIB))
    with pytest.raises(PyvlmError, match="has changed since the start"):
        pool.start()


@pytest.mark.usefixtures("nothing_left")
def test_too_little_memory_for_a_worker() -> None:
    options = PoolOptions(num_workers=1, slab_bytes=MIB, worker_memory_bytes=4 * MIB)
    with pytest.raises(PyvlmError) as error:
        PreprocessPool(TINY, tiny_vision(), options).start()
    assert error.value.code in ("out_of_memory", "runtime_missing")


@pytest.mark.usefixtures("nothing_left")
def test_a_slab_that_memory_cannot_hold() -> None:
    options = PoolOptions(num_workers=1, slab_bytes=1 << 50)
    with pytest.raises(PyvlmError, match=r"--slab-bytes\) takes 1125899906842624 bytes") as error:
        PreprocessPool(TINY, tiny_vision(), options).start()
    assert error.value.code == "out_of_memory"


@pytest.mark.usefixtures("nothing_left")
def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(PyvlmError, match="did not start: the system refuses") as error:
        PreprocessPool(TINY, tiny_vision(), PoolOptions(num_workers=1, slab_bytes=MIB)).start()
    assert error.value.code == "runtime_missing"


def test_a_worker_imports_what_it_needs_and_no_more(make_pool: MakePool) -> None:
    make_pool()
    (worker,) = workers_of()
    maps = Path(f"/proc/{worker}/maps").read_text()
    assert "memfd:pyvlm-slab" in maps
    assert "/_pixels" in maps
    for name in ("/_core.", "libshortfin", "torch", "tokenizers", "pydantic", "_ssl"):
        assert name not in maps
    assert int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[16]) >= 5
    environment = Path(f"/proc/{worker}/environ").read_bytes()
    assert b"PYTEST_CURRENT_TEST" not in environment  # stands for what a host keeps there


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_group_are_the_parents_business(make_pool: MakePool, signum: int) -> None:
    pool = make_pool()
    (worker,) = workers_of()
    os.kill(worker, signum)
    submit(pool, SMALL).result(WAIT_S).release()
    assert workers_of() == [worker]


def test_the_slab_cannot_be_cut(make_pool: MakePool) -> None:
    """By whoever holds the descriptor, such as a worker that a picture has taken over."""
    make_pool()
    slab = next(
        link
        for link in Path("/proc/self/fd").iterdir()
        if "memfd:pyvlm-slab" in str(link.readlink())
    )
    with pytest.raises(PermissionError):
        os.truncate(slab, 0)


def test_workers_are_a_quarter_of_the_cores_by_default() -> None:
    assert PoolOptions().num_workers == max(1, len(os.sched_getaffinity(0)) // 4)
    assert isinstance(
        make_preprocessor(TINY, tiny_vision(), PoolOptions(num_workers=0)), InlinePreprocessor
    )


# --- worker and parent ----------------------------------------------------------------------------


def test_a_closed_pipe_ends_a_worker_at_once(eventually: Eventually) -> None:
    """The parent lives on and its channel is open: the lifeline alone does it."""
    slab_fd = os.memfd_create("slab")
    os.truncate(slab_fd, MIB)
    worker = WorkerProcess(WorkerSetup(TINY, tiny_vision(), slab_fd, MIB, 512 * MIB))
    try:
        os.set_blocking(worker.fileno(), True)
        message = worker.receive()
        assert message is not None
        assert "ready" in message
        os.close(worker._lifeline)
        closed = time.monotonic()
        eventually(lambda: not is_running(worker.pid))
        assert time.monotonic() - closed < 2
        worker._lifeline = os.open(os.devnull, os.O_RDONLY)
    finally:
        assert worker.reap() == -signal.SIGIO
        os.close(slab_fd)


@pytest.mark.parametrize("how", ["idle", "under load", "stopped"])
def test_nothing_is_left_after_sigkill_of_the_parent(how: str, eventually: Eventually) -> None:
    shm = set(Path("/dev/shm").iterdir())
    source = HOST.format(root=str(ROOT)) + (LOAD if how != "idle" else "time.sleep(600)")
    with host("-c", source) as process:
        workers = its_workers(process)
        assert len(workers) == 2
        if how != "idle":
            assert process.stdout is not None
            assert process.stdout.readline() == "under load\n"
        if how == "stopped":
            for worker in workers:
                stop(worker)
        assert mapping_slabs() >= {process.pid, *workers}
        process.kill()
        killed = time.monotonic()
        eventually(lambda: not any(map(is_running, workers)))
        assert time.monotonic() - killed < 2
    assert not mapping_slabs() & {process.pid, *workers}
    assert {path for path in Path("/dev/shm").iterdir() if "pyvlm" in path.name} <= shm


@pytest.mark.parametrize("how", ["script", "stdin", "command"])
def test_any_kind_of_main_will_do(how: str, tmp_path: Path, eventually: Eventually) -> None:
    """No `if __name__ == "__main__"`, a script that cannot be imported twice, odd files about, and
    a host that forgets to close."""
    source = HOST.format(root=str(ROOT))
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not numpy')")
    (tmp_path / "ran").mkdir()
    script = tmp_path / "sub" / "script with spaces.py"
    script.parent.mkdir()
    script.write_text(f"import os; os.rmdir({str(tmp_path / 'ran')!r})\n" + source)
    arguments = {"script": [str(script)], "stdin": ["-P"], "command": ["-P", "-c", source]}[how]
    with script.open() as stdin:
        options = {"stdin": stdin} if how == "stdin" else {}
        with host(*arguments, cwd=tmp_path, **options) as process:
            workers = its_workers(process)
            assert len(workers) == 2
            assert process.wait(WAIT_S) == 0
    eventually(lambda: not any(map(is_running, workers)))
