"""What a file of measured steps says of itself, made up: a card, its environment."""

from medusa_sim.lab.measure.cells import StepMeta
from medusa_sim.latency.measurement import Environment

GPU = "h100-sxm"
ENVIRONMENT = Environment(
    name=GPU, device="NVIDIA H100 80GB HBM3", kind="cuda", units=132, cache_bytes=50 * 2**20,
    memory_bytes=80 * 2**30, driver="1", clocks_mhz={"sm": 1980.0}, current_clocks_mhz={}, torch="2.9",
    threads=1, commit="c", date="2026-01-01T00:00:00Z", load_average=0.0,
)  # fmt: skip
META = StepMeta(
    schema=1, title="t", acceptance="medusa1-vicuna-7b", accepted_draft_tokens=2,
    copy_bytes_per_s=1e12, environment=ENVIRONMENT,
)  # fmt: skip
