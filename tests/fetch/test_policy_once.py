"""The policy's admission runs once for a request, wherever its pictures come from."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import pyvlm
from pyvlm.media.decode import admit_images
from pyvlm.media.header import ImageHeader
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source_files import read_image_files
from tests.fetch.picture_server import PictureServer, fetcher, picture, run, url_of

PACKAGE = Path(pyvlm.__file__).parent
CALLS: Counter[str] = Counter()


class CountingPolicy(MediaPolicy):
    def check_request(self, sizes_bytes: Sequence[int]) -> None:
        CALLS["request"] += 1
        MediaPolicy.check_request(self, sizes_bytes)

    def check_header(self, header: ImageHeader, index: int) -> None:
        CALLS[f"header {index}"] += 1
        MediaPolicy.check_header(self, header, index)


def callers(name: str) -> list[str]:
    """Each line of the package that calls a method of the policy."""
    pattern = re.compile(rf"\.{name}\(")
    return [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]


def test_one_place_in_the_package_applies_the_policy() -> None:
    (request,), (header,) = callers("check_request"), callers("check_header")
    assert request.startswith("media/decode.py: policy.check_request(")
    assert header.startswith("media/decode.py: policy.check_header(")


def test_the_tests_that_the_document_names_exist() -> None:
    tests = Path(__file__).parents[1]
    document = (tests.parent / "docs/media.md").read_text()
    sources = "".join(path.read_text() for path in tests.rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", document))
    assert len(named) > 25
    assert {name for name in named if f"def {name}(" not in sources} == set()


@pytest.mark.parametrize("way", ["http", "data", "file url", "files"])
def test_each_way_in_is_admitted_once(way: str, tmp_path: Path) -> None:
    encoded = BytesIO()
    Image.new("RGB", (3, 2)).save(encoded, "PNG")
    data = encoded.getvalue()
    (tmp_path / "a.png").write_bytes(data)

    async def bring(policy: MediaPolicy) -> list[bytes]:
        async with PictureServer({"/a.png": picture(data)}) as server:
            limits = {name: getattr(policy, name) for name in ("allowed_local_media_path",)}
            async with fetcher(server, policy_type=CountingPolicy, **limits) as client:
                url = {
                    "http": url_of(server),
                    "data": "data:;base64," + base64.b64encode(data).decode(),
                    "file url": f"file://{tmp_path}/a.png",
                }[way]
                return await client.fetch_all([url] * 3)

    CALLS.clear()
    policy = CountingPolicy(allowed_local_media_path=tmp_path)
    if way == "files":
        images = read_image_files([tmp_path / "a.png"] * 3, policy)
    else:
        images = run(bring(policy))
    assert not CALLS
    assert [header.width for header in admit_images(images, policy)] == [3, 3, 3]
    assert CALLS == {"request": 1, "header 0": 1, "header 1": 1, "header 2": 1}
