"""/metrics counts what happened, logical and expanded apart; docs/metrics.md names all of it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Running
from tests.server.pictures import data_url, image_part, picture, text_part

DOCS = Path(__file__).parents[2] / "docs"
IMAGE_POSITIONS = 19


def scrape(server: Running) -> dict[str, float]:
    """By sample name and labels, as `name{key=value}`, with all requests so far counted: the last
    of a request is counted after its client has the answer."""
    assert server.becomes_idle()
    text = server.client.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if value != before.get(name, 0)
    }


def test_a_picture_counts_once_logically_and_as_its_positions(server: Running) -> None:
    before = scrape(server)
    usage = server.chat([image_part("red"), text_part()]).json()["usage"]
    seen = difference(before, scrape(server))
    assert seen["pyvlm_prompt_tokens_total"] == usage["prompt_tokens"]
    assert seen["pyvlm_prompt_logical_tokens_total"] == usage["prompt_tokens"]
    expanded = usage["prompt_tokens"] - 1 + IMAGE_POSITIONS
    assert seen["pyvlm_prefill_positions_total"] == expanded
    assert seen["pyvlm_completion_tokens_total"] == usage["completion_tokens"]
    assert seen["pyvlm_requests_total{code=,outcome=ok}"] == 1
    assert seen["pyvlm_choices_total{finish_reason=stop}"] == 1
    assert seen["pyvlm_images_total"] == 1
    assert seen["pyvlm_image_jobs_total{outcome=done}"] == 1
    for stage in ("fetch", "decode_image", "transform", "encode", "prefill"):
        assert seen[f"pyvlm_stage_seconds_count{{stage={stage}}}"] == 1
    assert seen["pyvlm_time_to_first_token_seconds_count"] == 1
    assert seen["pyvlm_request_seconds_count"] == 1
    assert seen["pyvlm_step_seconds_count"] >= 1


def test_gaps_and_widths_of_a_stream(server: Running) -> None:
    """Long enough that its tokens cannot all come at once, however busy the machine is."""
    stop_ids = server.service.loaded_engine.frontend.stop_token_ids
    bias = {str(token_id): -100 for token_id in stop_ids}
    before = scrape(server)
    server.chat("Tell me.", n=2, stream=True, max_tokens=300, logit_bias=bias)
    seen = difference(before, scrape(server))
    assert 1 <= seen["pyvlm_inter_token_seconds_count"] <= 2 * 299
    assert seen["pyvlm_decode_width_sum"] >= seen["pyvlm_decode_width_count"] >= 1


def test_refusals_are_counted_by_code(server: Running) -> None:
    before = scrape(server)
    server.chat(n=0)
    server.chat([{"type": "image_url", "image_url": {"url": data_url(picture()[:99])}}])
    server.chat([{"type": "input_audio"}])
    server.client.get("/nowhere")
    seen = difference(before, scrape(server))
    for code in ("invalid_parameter", "image_decode_failed", "modality_unsupported"):
        assert seen[f"pyvlm_requests_total{{code={code},outcome=error}}"] == 1
    assert seen["pyvlm_image_rejections_total{reason=image_decode_failed}"] == 1
    assert seen["pyvlm_image_rejections_total{reason=modality_unsupported}"] == 1
    assert seen["pyvlm_http_responses_total{method=GET,status=404}"] == 1


def test_labels_do_not_grow_with_what_clients_say(server: Running) -> None:
    before = scrape(server)
    for number in range(20):
        server.client.request(f"ZORK{number}", f"/nowhere/{number}")
        server.chat(**{f"zork{number}": 1})
    after = scrape(server)
    assert not [name for name in after if "ZORK" in name or "zork" in name]
    seen = difference(before, after)
    other = [name for name in seen if name.startswith("pyvlm_http_responses_total{method=other")]
    assert sum(seen[name] for name in other) == 20
    assert len(after.keys() - before.keys()) < 10


def test_documentation_names_every_metric(server: Running) -> None:
    server.chat([image_part(), text_part()], stream=True)
    server.chat([{"type": "input_audio"}])
    text = server.client.get("/metrics").text
    families = {
        family.name for family in text_string_to_metric_families(text) if family.type != "unknown"
    }
    families = {name for name in families if not name.endswith("_created")}
    documented = set(re.findall(r"^\| `(pyvlm_\w+)`", (DOCS / "metrics.md").read_text(), re.M))
    assert {name.removesuffix("_total") for name in documented} == families
