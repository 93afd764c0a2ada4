"""Prices: dated, sourced, never silent; what a million tokens cost follows from them."""

import datetime
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import document, frame, run
from one_line import one_line

from medusa_sim.errors import SpecError, UsageError
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.prices import STALE_DAYS, Price, given_price, price_of, prices
from medusa_sim.grid.costs import usd_per_million_tokens
from medusa_sim.scenario.scenario import Scenario

ROW = {"gpu": "a40", "usd_per_gpu_hour": 0.5, "offer": "us", "date": "2026-11-01", "source": "a price list"}


def write(folder: Path, **changes: object) -> Path:
    """A user's table of one row."""
    path = folder / "profiles" / "prices.toml"
    path.parent.mkdir(exist_ok=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**ROW, **changes}.items()]
    path.write_text("schema = 1\n[[price]]\n" + "\n".join(lines) + "\n")
    return path


def test_every_shipped_price_is_of_a_known_gpu_and_dated():
    shipped = prices()
    assert {price.gpu for price in shipped} <= set(gpu_names())
    assert all(datetime.date(2026, 1, 1) <= price.date <= datetime.date.today() for price in shipped)
    assert price_of("h100-sxm") == next(price for price in shipped if price.gpu == "h100-sxm")


def test_a_users_row_replaces_the_shipped_rows_of_its_gpu_alone(tmp_path):
    write(tmp_path)
    found = price_of("a40", tmp_path)
    assert found.usd_per_gpu_hour == 0.5
    assert sum(price.gpu == "a40" for price in prices(tmp_path)) == 1
    assert price_of("h100-sxm", tmp_path) == price_of("h100-sxm")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"date": "soon"}, "date"),
        ({"date": "2999-01-01"}, "today"),
        ({"usd_per_gpu_hour": -1.0}, "US dollars per GPU-hour"),
        ({"usd_per_gpu_hour": 0.0}, "US dollars per GPU-hour"),
    ],
)
def test_a_row_that_cannot_be_trusted_is_refused(changes, told, tmp_path):
    path = write(tmp_path, **changes)
    with one_line(SpecError, str(path), match=told):
        prices(tmp_path)


def test_a_price_of_tomorrow_is_todays_elsewhere_and_one_of_the_day_after_is_refused(tmp_path):
    days = [datetime.date.today() + datetime.timedelta(days=days) for days in (1, 2)]
    write(tmp_path, date=days[0].isoformat())
    assert price_of("a40", tmp_path).date == days[0]
    write(tmp_path, date=days[1].isoformat())
    with one_line(SpecError, match="today"):
        prices(tmp_path)


@pytest.mark.parametrize(("days", "stale"), [(0, False), (STALE_DAYS, False), (STALE_DAYS + 1, True)])
def test_an_old_price_says_so(days, stale):
    held = datetime.date(2026, 11, 1)
    price = Price(gpu="a40", usd_per_gpu_hour=0.5, offer="us", date=held, source="a list")
    told = price.text(held + datetime.timedelta(days=days))
    assert "2026-11-01" in told
    assert (f"{days} days old" in told) is stale


@pytest.mark.parametrize("usd", [0.0, -1.0, 1e9])
def test_a_given_price_has_a_range(usd):
    with pytest.raises(UsageError, match="per GPU-hour"):
        given_price("a40", usd)


def test_a_million_tokens_by_hand():
    # 1000 tokens/s are 3.6 million an hour
    assert usd_per_million_tokens(3.6, 1, 1000.0) == pytest.approx(1.0)
    assert usd_per_million_tokens(3.6, 4, 2000.0) == pytest.approx(2.0)
    assert np.isnan(usd_per_million_tokens(None, 1, 1000.0))


def test_sweep_recommend_and_python_name_the_same_cost():
    asked = ("sweep", "--gpu", "h100-sxm", "--batch", "4", "--candidates", "1,4")
    rows = frame(*asked)
    price = price_of("h100-sxm")
    assert price.text() in run(*asked, "--format", "csv").stderr
    expected = price.usd_per_gpu_hour / (3600e-6 * rows["tokens_per_s"])
    np.testing.assert_allclose(rows["usd_per_million_tokens"], expected, rtol=1e-12)
    answer = document("recommend", "--gpu", "h100-sxm", "--batch", "4")
    row = answer["schedule"][0]
    assert answer["price"]["date"] == price.date.isoformat()
    assert row["plain_usd_per_million_tokens"] == pytest.approx(rows["usd_per_million_tokens"][0])
    assert row["usd_per_million_tokens"] < row["plain_usd_per_million_tokens"]
    text = run("recommend", "--gpu", "h100-sxm", "--batch", "4").stdout
    assert price.text() in text


def test_a_given_price_overrides_and_none_leaves_the_column_empty():
    assert Scenario(gpu="h100-sxm", price=2.0).usd_per_gpu_hour == 2.0
    given = run("sweep", "--gpu", "l4", "--price", "2", "--candidates", "1", "--format", "csv")
    assert "usd_per_million_tokens:" not in given.stderr
    without = frame("sweep", "--gpu", "l4", "--candidates", "1")
    ratio = pd.read_csv(io.StringIO(given.stdout))["usd_per_million_tokens"][0]
    assert ratio > 0
    assert without["usd_per_million_tokens"].isna().all()
    assert "$" not in run("sweep", "--gpu", "l4").stdout
