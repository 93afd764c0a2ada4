"""Runs of a server of one's own: read, priced, placed."""

import pytest
from click.testing import CliRunner

from medusa_sim.cli import cli
from medusa_sim.errors import DataError
from medusa_sim.lab.validate.score_tables import served_table
from medusa_sim.lab.validate.served import compared, read_served, scenario_of, token_ms

HEAD = "gpu,model,runtime,tp,concurrency,prompt,output,tpot_ms"
ROW = "h100-sxm,llama-3.1-8b,vllm-0.15,1,16,1024,256,8.1"


def written(tmp_path, *lines, head=HEAD):
    path = tmp_path / "server.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_a_run_as_predicted_has_no_error(tmp_path):
    runs = read_served(written(tmp_path, ROW))
    (time_ms,), (low,), (high,) = token_ms(scenario_of(runs.iloc[0].to_dict()), [16.0], 1)
    found = compared(read_served(written(tmp_path, ROW.replace("8.1", f"{time_ms}")))).iloc[0]
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.held
    assert low < time_ms < high
    assert not compared(read_served(written(tmp_path, ROW.replace("8.1", f"{1.01 * high}")))).held.any()


def test_an_error_is_shown_in_per_cent_of_the_measurement(tmp_path):
    (time_ms,), _, _ = token_ms(scenario_of(read_served(written(tmp_path, ROW)).iloc[0].to_dict()), [16.0], 1)
    priced = compared(read_served(written(tmp_path, ROW.replace("8.1", f"{time_ms / 1.25}"))))
    assert priced.error.iloc[0] == pytest.approx(0.25)
    table = served_table(priced)
    assert dict(zip(table.headers, table.rows[0], strict=True))["error"] == "+25.0 %"


def test_runs_keep_their_order_and_their_own_columns(tmp_path):
    rows = [f"{gpu},llama-3.1-8b,vllm-0.15,1,{requests},512,128,9,mine" for gpu, requests in (
        ("h100-sxm", 4), ("h200-sxm", 4), ("h100-sxm", 64),
    )]  # fmt: skip
    found = compared(read_served(written(tmp_path, *rows, head=f"{HEAD},source")))
    assert found.gpu.tolist() == ["h100-sxm", "h200-sxm", "h100-sxm"]
    assert set(found.source) == {"mine"}
    assert found.predicted_ms.iloc[2] > found.predicted_ms.iloc[0] > found.predicted_ms.iloc[1]


def test_a_run_with_drafts_takes_the_tokens_of_its_rounds(tmp_path):
    head = HEAD.replace("tpot_ms", "itl_ms") + ",drafter,drafts,acceptance_length"
    found = compared(read_served(written(tmp_path, f"{ROW},eagle3,3,2.5", head=head))).iloc[0]
    assert found.measured_ms == pytest.approx(8.1 / 2.5)
    plain = compared(read_served(written(tmp_path, ROW))).iloc[0]
    assert 0.3 < found.predicted_ms / plain.predicted_ms < 0.8


@pytest.mark.parametrize(("line", "told"), [
    (ROW.replace("vllm-0.15", ""), "line 2: runtime is empty"),
    (ROW.replace(",1,16", ",two,16"), "line 2: tp 'two'"),
    (f"# ours\n\n{ROW.replace(',1,16', ',two,16')}", "line 4: tp 'two'"),
    (ROW.replace("8.1", "8100000"), "is the unit another one"),
])  # fmt: skip
def test_a_wrong_line_is_named(line, told, tmp_path):
    with pytest.raises(DataError, match=told):
        read_served(written(tmp_path, line))


def test_the_command_prices_what_it_can(tmp_path):
    path = written(tmp_path, ROW, ROW.replace("h100-sxm", "b900"))
    done = CliRunner().invoke(cli, ["validate", "served", str(path), "--fail-above", "1"])
    assert "not priced" in done.stderr
    assert "b900" in done.stderr
    assert done.stdout.startswith("1 runs: mean error")
    assert done.exit_code == 3
