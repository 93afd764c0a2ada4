"""What a folder of measured rows says of itself."""

import pytest

from medusa_sim.errors import DataError
from medusa_sim.lab.measure.record import write_meta
from medusa_sim.latency.measurement import Environment, Meta, PublishedMeta, Rates, check_meta, read_meta

PUBLISHED = """schema = 1
title = "t"
device = "a GPU"
driver = "d"
clocks = "c"
torch = "2.9"
date = "2026-01-02"
[files."gemm.csv"]
source = "a paper"
note = "read off"
"""
MEASURED = Meta(
    schema=1, title="t", method="m", models=("llama-7b",), dtypes=("fp16",),
    environment=Environment(
        name="our-card", device="A Card", kind="cuda", units=100, cache_bytes=40_000_000,
        memory_bytes=80_000_000_000, driver="1.2", clocks_mhz={"sm": 1980.0},
        current_clocks_mhz={"sm": 345.0}, torch="2.9.0", threads=4, commit="abc",
        date="2026-01-02T03:04:05Z", load_average=0.1,
    ),
    rates=Rates(copy_bytes_per_s=1e12, read_bytes_per_s=1e12, flops_per_s={"fp16": 1e14}, launch_eager_us=5),
)  # fmt: skip


def test_rows_of_a_paper_each_have_a_source(tmp_path):
    (tmp_path / "meta.toml").write_text(PUBLISHED)
    meta = check_meta(tmp_path, ["gemm.csv"])
    assert isinstance(meta, PublishedMeta)
    assert meta.files["gemm.csv"].source == "a paper"
    with pytest.raises(DataError, match=r"meta\.toml: files: no source of attention\.csv"):
        check_meta(tmp_path, ["gemm.csv", "attention.csv"])


def test_measured_rows_lie_in_the_folder_of_their_device(tmp_path):
    for name in ("our-card", "another-card"):
        folder = tmp_path / name
        folder.mkdir()
        write_meta(folder, MEASURED)
    assert (
        check_meta(tmp_path / "our-card", ["gemm.csv"]) == read_meta(tmp_path / "our-card", Meta) == MEASURED
    )
    with pytest.raises(DataError, match=r"meta\.toml: environment\.name"):
        check_meta(tmp_path / "another-card", ["gemm.csv"])
