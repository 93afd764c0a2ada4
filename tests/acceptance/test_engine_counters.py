"""Acceptance from engines: unbiased where the number of drafts varied, refused where counters contradict."""

import http.server
import json
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking import answered
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.engine_counters import (
    combined,
    counts_of_listed,
    counts_of_positions,
    counts_of_steps,
    over_every_step,
    position_profile,
    request_spread,
)
from medusa_sim.acceptance.engine_records import read_counts
from medusa_sim.acceptance.metrics_page import counts_between, fetched, samples
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import DataError

FILES = Path(__file__).resolve().parents[1] / "data" / "engine"
RATES = (0.7, 0.6, 0.5)


@pytest.mark.parametrize(
    ("name", "engine", "steps"),
    [
        ("vllm_metrics_after.txt", "vLLM", 21000),
        ("vllm_serve_spec_b8.json", "vLLM", 8000),
        ("tensorrt_llm_response.json", "engine", 1000),
        ("sglang_response.json", "SGLang", 1000),
        ("llama_cpp.log", "llama.cpp", 1000),
    ],
)
def test_every_engines_file_gives_the_same_rates(name, engine, steps):
    counts = combined(read_counts(FILES / name))
    assert counts.engine == engine
    assert counts.steps == steps
    assert counts.accepted / counts.tried == pytest.approx(RATES, abs=1e-3)


def test_two_pages_are_subtracted_and_steps_without_drafts_count_where_they_are_looked_up(tmp_path):
    """The page has 2 steps for each that drafted, and a request for every hundred."""
    counts = combined(read_counts(FILES / "vllm_metrics_after.txt", FILES / "vllm_metrics_before.txt"))
    assert counts.steps == 20000
    assert counts.tried.tolist() == [20000, 14000, 8400]
    every, match_rate = over_every_step(counts)
    assert match_rate == pytest.approx(0.5)
    assert every.tried.tolist() == [40000, 14000, 8400]
    assert every.tokens_per_step == pytest.approx(1.0 + 0.5 * 1.33)
    # a page alone counts from the start: 70140 generated, 27930 of them drafted, 210 with their prompts
    (whole,) = read_counts(FILES / "vllm_metrics_after.txt")
    assert (whole.all_steps, whole.steps) == (70140 - 27930 - 210, 21000)
    page = (FILES / "vllm_metrics_after.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    unfinished = tmp_path / "unfinished.txt"  # no request has ended: the counter is not there yet
    unfinished.write_text("".join(line for line in page if "request_success" not in line), encoding="utf-8")
    assert read_counts(unfinished)[0].all_steps == 70140 - 27930
    # fewer steps in all than drafted: a few are requests in flight while the page was read
    few, fewer = (replace(counts, all_steps=share * counts.steps) for share in (0.99, 0.97))
    assert over_every_step(few)[1] == 1.0
    with pytest.raises(DataError, match=r"20000 steps drafted.*19400 steps"):
        over_every_step(fewer)
    with pytest.raises(DataError, match="--lookup needs"):
        over_every_step(combined(read_counts(FILES / "llama_cpp.log")))
    path = tmp_path / "ours.toml"
    page = str(FILES / "vllm_metrics_after.txt")
    answered("acceptance", "from-engine", page, "--lookup", "-o", str(path))
    assert load_acceptance(path).match_rate_or_guess == pytest.approx(0.5)


def test_records_of_varied_length_count_a_step_where_it_tried():
    """100 steps of three drafts, then (1,1), (1,1), (1,0), (2,1): by hand."""
    counts = combined(read_counts(FILES / "aiperf_records.jsonl"))
    assert counts.tried.tolist() == [104, 71, 42]
    assert counts.accepted.tolist() == [73, 42, 21]
    assert counts.undrafted == 0.0
    assert position_profile(counts, title="t", source="s", match_rate=0.5).match_runs is None


@given(rates=st.lists(st.floats(0.1, 0.95), min_size=1, max_size=5), seed=st.integers(0, 2**32 - 1))
def test_rates_are_unbiased_whatever_the_draft_lengths(rates, seed):
    rng = np.random.default_rng(seed)
    steps = 4000
    drafted = rng.integers(1, len(rates) + 1, steps)
    drafted[0] = len(rates)
    accepted = np.minimum(drafted, np.cumprod(rng.random((steps, len(rates))) < rates, axis=1).sum(axis=1))
    lengths: dict[int, dict[int, int]] = defaultdict(dict)
    for (k, j), count in Counter(zip(drafted.tolist(), accepted.tolist(), strict=True)).items():
        lengths[k][j] = count
    counts = counts_of_steps(lengths, engine="x")
    assert counts.steps == steps
    assert np.all(counts.tried[1:] <= counts.accepted[:-1])
    seen = counts.tried > 0
    error = counts.accepted[seen] / counts.tried[seen] - np.asarray(rates)[seen]
    assert np.all(np.abs(error) <= 5.0 * np.sqrt(0.25 / counts.tried[seen]))


@given(histogram=st.lists(st.integers(0, 500), min_size=2, max_size=7).filter(lambda h: sum(h) > 0))
def test_tokens_per_step_are_those_of_the_histogram(histogram):
    drafts = len(histogram) - 1
    counts = counts_of_steps({drafts: dict(enumerate(histogram))}, engine="x")
    mean = 1.0 + sum(j * count for j, count in enumerate(histogram)) / sum(histogram)
    assert counts.tokens_per_step == pytest.approx(mean)


def test_times_and_lengths_of_joined_parts_are_means_by_steps():
    one = counts_of_positions([700], steps=1000, draft_tokens=1000, engine="x")
    timed = replace(one, tpot_us=8000.0, prompt=100.0, output=200.0, running=8.0)
    longer = counts_of_positions([2100], steps=3000, draft_tokens=3000, engine="x")
    both = combined([timed, replace(longer, tpot_us=4000.0, prompt=300.0)])
    assert (both.tpot_us, both.prompt, both.output, both.running) == (5000.0, 250.0, 200.0, None)
    untold = combined([one, longer])
    assert (untold.tpot_us, untold.prompt, untold.output, combined([timed]).running) == (None, 0.0, 0.0, 8.0)


def test_what_was_not_drafted_widens_or_refuses():
    little = combined([counts_of_positions([700, 420], steps=1000, draft_tokens=1900, engine="x")])
    assert little.undrafted_share == pytest.approx(0.05)
    assert "not drafted" in little.notes[0]
    with pytest.raises(DataError, match=r"varied \(1\.50 a step of 2\).*detailed"):
        combined([counts_of_positions([700, 420], steps=1000, draft_tokens=1500, engine="x")])


@pytest.mark.parametrize(
    ("accepted", "steps", "tokens", "told"),
    [
        ([700, 800], 1000, 2000, "more often than tried"),
        ([1200, 100], 1000, 2000, "more often than tried"),
        ([700, -5], 1000, 2000, "position 1 "),
        ([700, 420], 1000, 7000, "a tree"),
        ([0, 0], 0, 0, "no step drafted"),
    ],
)
def test_counters_at_odds_with_themselves_are_refused(accepted, steps, tokens, told):
    with pytest.raises(DataError, match=told):
        counts_of_positions(accepted, steps=steps, draft_tokens=tokens, engine="x")


def test_a_step_cannot_accept_more_than_it_drafted():
    with pytest.raises(DataError, match="cannot be"):
        counts_of_steps({2: {3: 1}}, engine="x")
    with pytest.raises(DataError, match="no step drafted"):
        counts_of_steps({0: {0: 5}}, engine="x")


def test_a_step_cannot_accept_fewer_than_none(tmp_path):
    path = tmp_path / "run.json"
    histogram = {"-1": 50, "0": 30, "1": 20}
    path.write_text(json.dumps({"spec_accept_histogram": histogram, "spec_num_proposed_drafts": 100}))
    with one_line(DataError, "-1"):
        read_counts(path)


def test_engines_of_one_server_are_added_and_two_models_kept_apart(tmp_path):
    page = (FILES / "vllm_metrics_after.txt").read_text()
    both = tmp_path / "both.txt"
    both.write_text(page + page.replace('engine="0"', 'engine="1"'))
    assert combined(read_counts(both)).steps == 42000
    other = page.replace("meta-llama/Llama-3.1-8B-Instruct", "another")
    both.write_text(page + other)
    with pytest.raises(DataError, match=r"2 models are mixed.*--of"):
        combined(read_counts(both))
    assert combined(read_counts(both), "another").steps == 21000
    with pytest.raises(DataError, match="no counts of model"):
        combined(read_counts(both), "a third")


def test_pages_the_wrong_way_round_and_restarts_are_refused(tmp_path):
    with pytest.raises(DataError, match="went down"):
        read_counts(FILES / "vllm_metrics_before.txt", FILES / "vllm_metrics_after.txt")
    fewer = tmp_path / "fewer.txt"
    text = (FILES / "vllm_metrics_before.txt").read_text()
    fewer.write_text("\n".join(line for line in text.splitlines() if 'position="2"' not in line))
    with pytest.raises(DataError, match="2 positions before and 3 after"):
        read_counts(FILES / "vllm_metrics_after.txt", fewer)


def test_sglangs_mean_is_shown_as_an_acceptance():
    with pytest.raises(DataError, match=r"--acceptance 2\.33@3"):
        read_counts(FILES / "sglang_metrics.txt")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("vllm:num_requests_running 3.0\n", "no counters of speculation"),
        ("hello\n", "holds no acceptance"),
        ('{"a": 1}', "holds no acceptance"),
        ('{"a": 1}\n{"b": ', "cannot be parsed"),
        ('{"acceptance_histogram": [1, 2], "num_spec_steps": 5}', "corrupt"),
        ('{"acceptance_histogram": ["x"]}', "malformed"),
        ('{"acceptance_histogram": [3, 1], "num_spec_steps": 4, "per_step_accepted": [0], '
         '"per_step_drafted": [1, 1]}', "malformed"),
    ],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(content, told, tmp_path):
    path = tmp_path / "file.txt"
    path.write_text(content)
    with one_line(DataError, match=told):
        read_counts(path)


def test_samples_of_prometheus_text():
    text = '# TYPE a counter\na{x="1",y="b\\"c"} 2.5 1700000000\nb 3e4\nbroken{ 1\nc NaNx\n'
    assert list(samples(text)) == [("a", {"x": "1", "y": 'b\\"c'}, 2.5), ("b", {}, 30000.0)]


def test_the_command_writes_a_profile_that_loads(tmp_path):
    path = tmp_path / "ours.toml"
    before, after = FILES / "vllm_metrics_before.txt", FILES / "vllm_metrics_after.txt"
    told = answered("acceptance", "from-engine", str(after), "--before", str(before), "-o", str(path)).stderr
    assert "0.700,0.420,0.210 of the steps (conditional:0.700,0.600,0.500)" in told
    profile = load_acceptance(path)
    assert profile.tokens_per_step(4) == pytest.approx(2.33)
    low, high = profile.band(4)
    assert 2.30 < low < 2.33 < high < 2.36


class _Page(http.server.BaseHTTPRequestHandler):
    pages: Iterator[str] = iter(())
    asked = ""

    def do_GET(self) -> None:
        type(self).asked = self.path
        body = next(type(self).pages).encode()
        self.send_response(200 if body else 503)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    page = http.server.HTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{page.server_port}/metrics"
    page.shutdown()
    page.server_close()
    thread.join()


def test_a_server_is_looked_at_twice(server, tmp_path):
    pages = [(FILES / f"vllm_metrics_{name}.txt").read_text() for name in ("before", "after")]
    _Page.pages = iter(pages)
    path = tmp_path / "ours.toml"
    result = answered("acceptance", "from-engine", server, "--wait", "0.01", "-o", str(path))
    assert "20000 steps" in result.output


def test_a_server_that_refuses_is_one_line(server):
    _Page.pages = iter([""])
    with pytest.raises(DataError, match="answered 503"):
        fetched(f"{server}?name[]=vllm:x")
    assert _Page.asked == "/metrics?name[]=vllm:x"


def test_a_server_that_does_not_answer_ends_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
            fetched(f"http://127.0.0.1:{port}/metrics", 0.2)
    with pytest.raises(DataError, match="cannot be reached"):
        fetched(f"http://127.0.0.1:{port}/metrics", 0.2)
    for bad in ("ftp://x/metrics", "http://"):
        with pytest.raises(DataError, match="http or https"):
            fetched(bad)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0])
def test_requests_spread_is_found_again(spread):
    """Requests with normal logits, drafts of one token: what chance adds to their shares is taken off."""
    draw = np.random.default_rng(0)
    rates = 1.0 / (1.0 + np.exp(-(0.8 + spread * draw.standard_normal(1500))))
    records = [
        replace(counts_of_steps({1: {1: taken, 0: 80 - taken}}, engine="vLLM"), is_request=True)
        for taken in draw.binomial(80, rates).tolist()
    ]
    found = request_spread(records)
    assert found == pytest.approx(spread, abs=0.12)
    profile = position_profile(combined(records), title="t", source="s")
    assert profile.request_spread == round(found, 3)
    assert request_spread(records[:5]) is None
    assert request_spread([replace(each, is_request=False) for each in records]) is None


def test_requests_spread_is_that_of_the_variance_beyond_chance_by_hand():
    """Twenty requests of a hundred drafts accept 40 or 60: (0.01 - 0.25 x 19 / 2000) / 0.95 is 0.00803."""
    records = [
        replace(counts_of_steps({1: {1: taken, 0: 100 - taken}}, engine="vLLM"), is_request=True)
        for taken in [40, 60] * 10
    ]
    # by quadrature: shares of logits with this deviation around none have that variance
    assert request_spread(records) == pytest.approx(0.3701, abs=1e-3)


def test_listed_steps_count_where_they_tried_and_whether_the_next_drafts_too():
    """By hand: three drafts of which two are right, none, two of which both are, three of which none is."""
    counts = counts_of_listed([3, 0, 2, 3], [2, 0, 2, 0], engine="x")
    assert (counts.tried.tolist(), counts.accepted.tolist()) == ([3, 2, 1], [2, 2, 0])
    assert (counts.steps, counts.all_steps, counts.followed) == (3, 4.0, (2, 1))
    nothing = counts_of_listed([0, 0], [0, 0], engine="x")
    assert combined([counts, nothing]).all_steps == 6.0
    with pytest.raises(DataError, match="no step drafted anything"):
        combined([nothing])


def test_a_histogram_has_as_many_positions_as_drafts_in_the_mean_rounded_up(tmp_path):
    """4 steps accept none, 4 one and 2 two drafts: 29 drafts in ten steps were three in some."""
    record = {"acceptance_histogram": [4, 4, 2], "total_draft_tokens": 29, "completion_tokens": 20}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    (counts,) = read_counts(path)
    assert counts.accepted.tolist() == [6, 2, 0]
    assert (counts.steps, counts.all_steps) == (10, 20 - 1 - 8)
    path.write_text(json.dumps(record | {"num_spec_tokens": 5}))
    assert read_counts(path)[0].accepted.tolist() == [6, 2, 0, 0, 0]


def test_what_a_page_counts_rises_from_the_page_before():
    """Of 40 steps of two drafts; four requests took 8 ms a token, and a page may hold no lengths."""
    before = {"m": {"drafts": 10.0, "draft_tokens": 20.0, 0: 6.0, 1: 3.0, "timed": 1.0, "token_s": 0.009}}
    after = {"m": {"drafts": 50.0, "draft_tokens": 100.0, 0: 36.0, 1: 15.0, "timed": 5.0, "token_s": 0.041,
                   "running": 8.0}}  # fmt: skip
    (counts,) = counts_between(before, after, "page")
    assert counts.tpot_us == pytest.approx(8000.0)
    assert (counts.prompt, counts.output, counts.running) == (0.0, 0.0, 8.0)
    lengths = {"prompts": 2800.0, "outputs": 360.0, "generated": 300.0, "finished": 4.0}
    (counts,) = counts_between(before, {"m": after["m"] | lengths}, "page")
    assert (counts.prompt, counts.output) == (700.0, 90.0)
    assert counts.all_steps == 300 - 30 - 12 - 4
    with pytest.raises(DataError):
        counts_between(after, before, "page")


def test_steps_that_name_no_drafts_drafted_as_many_as_any_kept(tmp_path):
    """Ten steps with none, five with one and two with three kept: 51 drafts, of which all or 40 were made."""
    path = tmp_path / "record.json"
    record = {"acceptance_histogram": {"0": 10, "1": 5, "3": 2}}
    for more, undrafted, positions in (
        ({}, 0.0, 3), ({"num_draft_tokens": 40}, 11.0, 3), ({"num_spec_tokens": 5}, 0.0, 5),
    ):  # fmt: skip
        path.write_text(json.dumps(record | more), encoding="utf-8")
        (counts,) = read_counts(path)
        assert counts.undrafted == undrafted
        assert counts.accepted.tolist() == [7, 2, 2, 0, 0][:positions]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("aiperf_records.jsonl", [(100, [100, 70, 42], [70, 42, 21], 0.0), (4, [4, 1], [3, 0], 0.0)]),
        ("llama_cpp.log", [(1000, [1000, 700, 420], [700, 420, 210], 0.0)]),
        ("sglang_response.json", [(1000, [1000, 700, 420], [700, 420, 210], 0.0)]),
        ("tensorrt_llm_response.json", [(1000, [1000, 700, 420], [700, 420, 210], 0.0)]),
        ("vllm.log", [
            (2747, [2747, 1923, 1154], [1923, 1154, 577], 0.0),
            (8962, [8962, 6273, 3764], [6273, 3764, 1882], 0.962406015),
            (9065, [9065, 6345, 3807], [6345, 3807, 1904], 0.984962406),
        ]),
        ("vllm_metrics_after.txt", [(21000, [21000, 14700, 8820], [14700, 8820, 4410], 0.0)]),
        ("vllm_metrics_before.txt", [(1000, [1000, 700, 420], [700, 420, 210], 0.0)]),
        ("vllm_serve_spec_b8.json", [(8000, [8000, 5600, 3360], [5600, 3360, 1680], 0.0)]),
    ],
)  # fmt: skip
def test_counts_of_a_file_are_its_steps_by_position(name, told):
    """0.7 of the first drafts, 0.6 of the second and a half of the third were accepted."""
    found = read_counts(FILES / name)
    assert [(each.steps, each.tried.tolist(), each.accepted.tolist()) for each in found] == [
        each[:3] for each in told
    ]
    assert {(each.prompt, each.output) for each in found} == {(0.0, 0.0)}  # not told
    assert [each.undrafted for each in found] == pytest.approx([each[3] for each in told], abs=1e-8)
