"""What is sent, and when."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from pyvlm.bench.load import due_times
from pyvlm.bench.options import ImageSize, Schedule, Target, Workload
from pyvlm.bench.workload import make_requests
from pyvlm.errors import PyvlmError

TARGET = Target("http://localhost", "/v1/chat/completions", "m")
PICTURES = Workload(
    num_prompts=40, image_fraction=0.5, image_sizes=(ImageSize(16, 24),), images_per_request=2
)


def bodies(workload: Workload, target: Target = TARGET, **options: int) -> list[dict[str, Any]]:
    return [json.loads(request.payload) for request in make_requests(target, workload, **options)]


def urls(body: dict[str, Any]) -> list[str]:
    content = body["messages"][0]["content"]
    if isinstance(content, str):
        return []
    return [part["image_url"]["url"] for part in content if part["type"] == "image_url"]


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    assert bodies(PICTURES) == bodies(PICTURES)
    assert bodies(PICTURES) != bodies(replace(PICTURES, seed=1))
    assert bodies(PICTURES)[0] != bodies(PICTURES, stream=1)[0]


def test_mix_of_text_and_pictures() -> None:
    counts = [len(urls(body)) for body in bodies(PICTURES)]
    assert set(counts) == {0, 2}
    assert 8 <= counts.count(2) <= 32
    requests = make_requests(TARGET, PICTURES)
    assert [request.num_images for request in requests] == counts


def test_each_picture_is_new_and_has_its_size() -> None:
    sent = [url for body in bodies(PICTURES) for url in urls(body)]
    assert len(set(sent)) == len(sent)
    picture = Image.open(io.BytesIO(base64.b64decode(sent[0].partition(",")[2])))
    assert (picture.format, picture.size) == ("JPEG", (24, 16))


def test_repeated_pictures() -> None:
    sent = [url for body in bodies(replace(PICTURES, num_distinct_images=3)) for url in urls(body)]
    assert len(sent) > 10
    assert len(set(sent)) == 3
    # Warm-up and run choose from the same pictures.
    warmup = bodies(replace(PICTURES, num_distinct_images=3), stream=1)
    assert {url for body in warmup for url in urls(body)} == set(sent)


def test_sizes_by_probability() -> None:
    sizes = (ImageSize(8, 8, 9.0), ImageSize(8, 16, 1.0))
    workload = replace(PICTURES, num_prompts=100, image_fraction=1.0, image_sizes=sizes)
    sent = [url for body in bodies(workload) for url in urls(body)]
    widths = [Image.open(io.BytesIO(base64.b64decode(u.partition(",")[2]))).width for u in sent]
    assert 0.8 < widths.count(8) / len(widths) < 0.97


def test_lengths() -> None:
    workload = Workload(num_prompts=200, input_words=20, output_tokens=10, range_ratio=0.5)
    sent = bodies(workload)
    lengths = {len(body["messages"][0]["content"].split()) for body in sent}
    assert (min(lengths), max(lengths)) == (10, 30)
    outputs = {body["max_tokens"] for body in sent}
    assert (min(outputs), max(outputs)) == (5, 15)


def test_body_of_the_completions_endpoint_and_extra_fields() -> None:
    target = replace(TARGET, backend="openai", extra_body={"top_k": 3})
    body = bodies(Workload(num_prompts=1, ignore_eos=True), target)[0]
    assert isinstance(body["prompt"], str)
    assert "messages" not in body
    assert (body["top_k"], body["ignore_eos"], body["stream"]) == (3, True, True)
    assert "ignore_eos" not in bodies(Workload(num_prompts=1))[0]


def test_poisson_arrivals() -> None:
    due = due_times(Schedule(request_rate=50), 5000, seed=0)
    gaps = [b - a for a, b in itertools.pairwise(due)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert due[0] == 0
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert math.sqrt(variance) == pytest.approx(mean, rel=0.1)  # exponential: deviation = mean
    assert due_times(Schedule(request_rate=50), 5000, seed=1) != due


def test_burstiness_and_infinite_rate() -> None:
    due = due_times(Schedule(request_rate=10, burstiness=1e6), 100, seed=0)
    assert due[-1] == pytest.approx(9.9, rel=0.01)  # nearly regular
    assert due_times(Schedule(), 3, seed=0) == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Workload(num_prompts=0),
        lambda: Workload(range_ratio=1.0),
        lambda: Workload(image_fraction=1.5),
        lambda: Workload(image_sizes=()),
        lambda: Workload(image_sizes=(ImageSize(0, 4),)),
        lambda: Workload(image_sizes=(ImageSize(4, 4, 0.0),)),
        lambda: Schedule(request_rate=0),
        lambda: Schedule(request_rate=math.nan),
        lambda: Schedule(burstiness=math.inf),
        lambda: Schedule(max_concurrency=0),
    ],
)
def test_wrong_options(make: Any) -> None:
    with pytest.raises(PyvlmError) as caught:
        make()
    assert caught.value.code == "invalid_parameter"
