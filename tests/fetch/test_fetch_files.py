"""Case 22 of the media cases: file URLs, and the files that the command line names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media import source_files
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source import FileSource, parse_image_source
from pyvlm.media.source_files import read_allowed_file, read_image_files

pytestmark = pytest.mark.timeout(30)  # nothing here may wait
PICTURE = b"\x89PNG\r\n\x1a\n" + b"x" * 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with pictures, beside one that is none of a client's business."""
    inside, outside = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (inside / "sub", outside):
        folder.mkdir(parents=True)
    for path in (inside / "a.png", inside / "sub/b c.png", outside / "secret"):
        path.write_bytes(PICTURE)
    (inside / "within").symlink_to("sub/b c.png")
    (inside / "absolute").symlink_to(inside / "a.png")
    (inside / "folder").symlink_to("sub")
    (inside / "out").symlink_to(outside / "secret")
    (inside / "out-folder").symlink_to(outside)
    (inside / "chain").symlink_to("out")
    (inside / "loop").symlink_to("loop")
    (inside / "process").symlink_to("/proc/self/environ")
    (inside / "device").symlink_to("/dev/zero")
    os.mkfifo(inside / "fifo")
    return inside


def read(url: str, root: Path | None, **limits: int) -> bytes:
    policy = MediaPolicy(allowed_local_media_path=root, **limits)
    source = parse_image_source(url, 1)
    assert isinstance(source, FileSource)
    return read_allowed_file(source, policy, 1)


def error_of(url: str, root: Path | None, **limits: int) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        read(url, root, **limits)
    error = caught.value
    assert error.param == "images[1]"
    assert str(root) not in error.message  # nor any other path of this computer
    assert "/" not in error.message
    assert error.__suppress_context__ or error.__context__ is None
    return error


@pytest.mark.parametrize(
    "name", ["a.png", "sub/b%20c.png", "within", "absolute", "folder/b%20c.png", "./sub//b c.png",
             "%61.png", "a.png?query#fragment"],
)  # fmt: skip
def test_case_22_files_below_the_allowed_directory(root: Path, name: str) -> None:
    for prefix in ("file://", "FILE://", "file://localhost"):
        assert read(f"{prefix}{root}/{name}", root) == PICTURE


def test_the_allowed_directory_may_be_a_link_itself(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    for name in (link, root):
        assert read(f"file://{name}/a.png", link) == PICTURE
    assert error_of(f"file://{link}/out", link).code == "media_policy_violation"


@pytest.mark.parametrize(
    "name",
    ["out", "out-folder/secret", "chain", "process", "device", "../allowed-not/secret",
     "../../../../../../etc/passwd", "sub/../a.png", "%2e%2e/allowed-not/secret",
     "sub/%2E%2E/a.png", "..%2fallowed-not%2fsecret"],
)  # fmt: skip
def test_case_22_links_and_dots_that_lead_out(root: Path, name: str) -> None:
    with pytest.raises(PyvlmError) as caught:
        read(f"file://{root}/{name}", root)
    assert caught.value.code == "media_policy_violation"


@pytest.mark.parametrize("name", ["fifo", "sub", "loop", "missing", "a.png/x", "fifo/x", "x" * 300])
def test_case_22_no_regular_file_there(root: Path, name: str) -> None:
    error = error_of(f"file://{root}/{name}", root)
    assert (error.code, error.message) == ("image_fetch_failed", "image 1: the file cannot be read")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/proc/self/environ", "/proc/self/root/etc/passwd", "/proc/self/fd/0",
     "/dev/zero", "/dev/stdin", "/sys/kernel/notes", "/no/such/file", "/"],
)  # fmt: skip
def test_case_22_outside_all_look_the_same(root: Path, path: str) -> None:
    error = error_of(f"file://{path}", root)
    assert error.code == "media_policy_violation"
    expected = "image 1: allowed_local_media_path is set, saw a path outside of it"
    assert error.message == expected


def test_case_22_a_name_that_only_begins_alike(root: Path) -> None:
    assert error_of(f"file://{root}-not/secret", root).code == "media_policy_violation"


@pytest.mark.parametrize(
    "url", ["file:a.png", "file:/a", "file://host/a", "file://", "file:///a%00b", "file:////a/../b",
            "file://127.0.0.1/a", "file:///a\\b", "file://user@localhost/a"],
)  # fmt: skip
def test_case_22_urls_that_are_refused_as_they_stand(url: str) -> None:
    with pytest.raises(PyvlmError) as caught:
        parse_image_source(url, 0)
    assert caught.value.code in ("media_policy_violation", "image_fetch_failed")


def test_case_22_no_file_until_a_directory_is_allowed(root: Path) -> None:
    error = error_of(f"file://{root}/a.png", None)
    assert error.message == "image 1: allowed_local_media_path is not set, saw a file: URL"


def test_a_file_that_is_too_large(root: Path) -> None:
    error = error_of(f"file://{root}/a.png", root, max_image_bytes=1007)
    assert error.message == "image 1: max_image_bytes is 1007, saw 1008 bytes"
    assert read(f"file://{root}/a.png", root, max_image_bytes=1008) == PICTURE


def test_a_file_that_grows_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read

    def grow(descriptor: int, count: int) -> bytes:
        with (root / "a.png").open("ab") as stream:
            stream.write(bytes(1000))
        return real(descriptor, count)

    monkeypatch.setattr(source_files.os, "read", grow)
    error = error_of(f"file://{root}/a.png", root, max_image_bytes=1500)
    assert "max_image_bytes is 1500, saw 1501 bytes" in error.message


@pytest.mark.parametrize("swapped", ["a.png", "sub"])
def test_a_part_swapped_for_a_link_after_it_was_resolved(
    root: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    real = os.path.realpath
    outside = root.parent / "allowed-not"
    (outside / "b c.png").write_bytes(b"secret")

    def swap(path, **options):
        resolved = real(path, **options)
        if isinstance(path, bytes) and path.endswith(b".png"):
            (root / swapped).rename(root / "gone")
            (root / swapped).symlink_to(outside / "secret" if swapped == "a.png" else outside)
        return resolved

    monkeypatch.setattr(source_files.os.path, "realpath", swap)
    name = "a.png" if swapped == "a.png" else "sub/b c.png"
    assert error_of(f"file://{root}/{name}", root).code == "image_fetch_failed"


def test_no_descriptor_stays_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for name in ("a.png", "sub/b%20c.png", "fifo", "missing", "out", "a.png/x"):
        try:
            read(f"file://{root}/{name}", root)
        except PyvlmError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_command_line_reads_any_regular_file(root: Path) -> None:
    assert read_image_files([root / "a.png", str(root / "out")], MediaPolicy()) == [PICTURE] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [("fifo", "it is no regular file"), ("sub", "it is no regular file"), ("device", "no regular"),
     ("missing", "No such file or directory"), ("a\0b", "it is no file name")],
)  # fmt: skip
def test_the_command_line_names_the_file_and_the_reason(root: Path, name: str, reason: str) -> None:
    with pytest.raises(PyvlmError, match=reason) as caught:
        read_image_files([root / "a.png", f"{root}/{name}"], MediaPolicy())
    assert (caught.value.code, caught.value.param) == ("image_fetch_failed", "images[1]")


def test_the_command_line_s_limits(root: Path) -> None:
    paths = [root / "a.png"] * 3
    for limits, message in (
        ({"max_images": 2}, "max_images is 2, saw 3 images"),
        ({"max_image_bytes": 9}, "image 0: max_image_bytes is 9, saw 1008 bytes"),
        ({"max_request_image_bytes": 2016}, "max_request_image_bytes is 2016, saw 3024 bytes"),
    ):
        with pytest.raises(PyvlmError, match=message) as caught:
            read_image_files(paths, MediaPolicy(**limits))
        assert caught.value.code == "media_policy_violation"


def test_opening_a_pipe_never_waits_even_if_it_takes_a_file_s_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat
    regular = real(root / "a.png")
    monkeypatch.setattr(source_files.os, "stat", lambda *_args, **_options: regular)
    done = threading.Event()

    def attempt() -> None:
        with pytest.raises(PyvlmError):
            read_image_files([root / "fifo"], MediaPolicy())
        done.set()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    assert done.wait(20)
    thread.join()
