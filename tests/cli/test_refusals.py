"""What cannot be answered is refused in one line with its exit code, and nothing is written."""

import shlex

import pytest
from asking import HEADS, refused

SWEEP = "sweep --latency roofline --runtime cuda-graph"
RECOMMEND = "recommend --latency roofline --batch 1..8"
LOAD = "load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --policy none,3 --requests 250 --seeds 1"
COMPARE = "compare --model llama-3.1-8b"
TREE = "tree build --candidates"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("swep", 2, "did you mean 'sweep'"),
        ("sweep --btach 8", 2, "--batch"),
        ("sweep --scope blok", 2, "block"),
        ("sweep --format parquet", 2, "-o FILE.parquet"),
        ("sweep --latency guess", 2, "calibrated"),
        *((f"sweep --batch '{grid}'", 2, "--batch") for grid in ("64..1", "0", "x", "99999999999", "")),
        (f"{SWEEP} --gpu h100-smx", 1, "h100-sxm"),
        (f"{SWEEP} --model vicunia-7b", 1, "vicuna-7b"),
        (f"{SWEEP} --runtime cudagraph", 1, "cuda-graph"),
        (f"{SWEEP} --acceptance paper-fig12", 1, "paper-fig21"),
        (f"{SWEEP} --gpu a40,,h100-sxm", 2, "empty name"),
        (f"{SWEEP} --candidates 300,1000 --acceptance paper-fig4-sparse", 1, "2..256"),
        (f"{SWEEP} --dtype fp8 --gpu a40", 1, "fp8"),
        (f"{SWEEP} --dtype fp8 --gpu a100-80gb-pcie,a40 -o x.parquet", 1, "fp8"),
        (f"{SWEEP} --model no/such/config.json", 1, "config.json"),
        (f"{SWEEP} -o /no/such/folder/x.csv", 1, "does not exist"),
        (f"{SWEEP} --report /dev/null/x", 1, "is not a folder"),
        (f"{SWEEP} --heads 0", 2, "heads"),
        (f"{SWEEP} --all-rows --batch 1..4096:1 --seq 1..64:1", 2, "too many"),
        ("sweep --runtime vllm --candidates 64", 1, "take trees with --runtime cuda-graph"),
        ("sweep --gpu l4 --price nan", 2, "price"),
        (f"{RECOMMEND} --drafter mtp", 2, "no MTP module"),
        (f"{RECOMMEND} --drafter draft-model --acceptance 0.5", 2, "--draft-model"),
        (f"{RECOMMEND} --draft-model llama-68m", 2, "takes no --draft-model"),
        (f"{RECOMMEND} --acceptance 1.5", 2, "acceptance rate"),
        (f"{RECOMMEND} --acceptance no-such", 1, "unknown acceptance profile"),
        (f"{RECOMMEND} --chain-only --acceptance paper-fig21", 2, "knows no chains"),
        (f"{RECOMMEND} --prompt-tokens 5", 2, "both or neither"),
        (f"{RECOMMEND} --max-latency-ms -1", 2, "above 0"),
        (f"{RECOMMEND} --switch-gain 2", 2, "below 1"),
        (f"{RECOMMEND} --workload poetry", 2, "unknown workload"),
        (f"{RECOMMEND} --export sglang", 2, "never merged"),
        (f"{RECOMMEND} --gpu a101", 1, "unknown GPU"),
        (f"{LOAD} --rate 0", 2, "0 is not a finite number above 0"),
        (f"{LOAD} --rate a,b", 2, "--rate"),
        (f"{LOAD} --rate inf", 2, "finite"),
        (f"{LOAD} --policy none,,3", 2, "empty name"),
        (f"{LOAD} --policy warp", 2, "policy 'warp'"),
        (f"{LOAD} --users 4 --rate 3", 2, "closed loop"),
        (f"{LOAD} --trace nowhere.csv", 1, "no such file"),
        (f"{LOAD} --prompt-tokens nan", 2, "--prompt-tokens"),
        (f"{LOAD} --acceptance paper-fig21 --drafter medusa --runtime cuda-graph", 2, "by position"),
        (f"{COMPARE} --price cheap", 2, "price"),
        (f"{COMPARE} --price h100-sxm=", 2, "price"),
        (f"{COMPARE} --gpu h99", 1, "h99"),
        (f"{COMPARE} --drafter medusas", 2, "medusa"),
        (f"{COMPARE} --rate 0", 2, "--rate"),
        (f"{TREE} 4 --head-accuracy paper-fig21", 1, "is a curve"),
        (f"{TREE} 4 --head-accuracy medusa1-vicuna-7b --of 7b", 2, "rows of a CSV"),
        ("acceptance show paper-fig21 --candidates 9999", 2, "covers 1..256"),
        ("reproduce figur22", 2, "did you mean 'figure22'"),
        ("reproduce --plot x.png", 2, "--plot"),
        ("specs h100sxm", 1, "did you mean 'h100-sxm'"),
        ("roofline --plot roof.jpeg2", 2, ".png"),
        ("validate", 2, "FILE"),
        ("validate --tree-runs x", 2, "--child-vectors"),
        ("validate --child-vectors x", 2, "--tree-runs"),
        ("validate --batch-curves x --measured y", 2, "--measured"),
        ("validate --batch-curves nowhere.csv", 1, "no such file"),
        ("sweep -o .", 1, "is a folder"),
        ("sweep --shard 1/2", 2, "say where with --out"),
        ("sweep --workers 2", 2, "say where with --out"),
        ("sweep --out x --shard 1/2 --workers 2", 2, "give one of them"),
        ("sweep --out x --format csv", 2, "leave --format and -o out"),
        ("sweep --out x --workers 0", 2, "is not in the range"),
        *((f"train --method backbone --save x {option} {value}", 2, "finite number")
          for option in ("--learning-rate", "--lambda-0", "--temperature") for value in ("nan", "inf")),
        ("measure --batch 4", 2, "--batch"),
        ("measure --decoder-steps x --budget 3", 2, "without --with-operators"),
        ("measure --decoder-steps x --checkpoint y", 2, "--checkpoint"),
        ("measure --decoder-steps x --seq-len 64,128", 2, "one value is taken"),
        ("measure --decoder-steps x --candidates 1", 2, "one count above 1"),
        ("measure --decoder-runs x", 2, "--checkpoint"),
        ("measure --decoder-runs x --seq-len 64", 2, "--seq-len"),
        ("measure --decoder-runs x --decoder-steps y", 2, "--decoder-steps"),
        ("measure --with-operators", 2, "FOLDER"),
        ("measure --with-operators --decoder-steps x --repeats 3", 2, "--repeats"),
        ("measure --with-operators --decoder-steps x --models llama-7b,llama-13b", 2, "one model"),
        ("measure --with-operators --decoder-runs x", 2, "--decoder-runs"),
    ],
)  # fmt: skip
def test_a_line_that_is_refused(line, code, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(told, *shlex.split(line), code=code)
    assert not list(tmp_path.iterdir())


OBSERVE = "acceptance predict --targets TARGETS --observations FILE"
OBSERVED = "decoder,spec,block_efficiency\n"
TIME = "time --latency roofline --ops FILE -o out.csv"
OPS = "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype,time_us,source,remark\n"
LINEAR = "mlp_up_proj,64,11008,4096,,,,,,,fp16,70,bench,first\n"
DECODE = "decode_attention,,,,8,1,1024,32,32,128,fp16,90.5,bench,\n"
EXPERTS = (
    "engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,local_experts_hit,local_rows\n"
)
TRITON = "sglang,sglang_fused_moe_triton,{},{},2048,768,{},128,1,1,balanced,128,128\n"
MOE = "time --gpu h100-sxm --ops FILE"
SCORE = "tree score --head-accuracy medusa1-vicuna-7b --tree FILE"


@pytest.mark.parametrize(
    ("line", "text", "told"),
    [
        (f"{RECOMMEND} --acceptance FILE", "", "no rows"),
        (f"{RECOMMEND} --acceptance FILE", "head,rank,accuracy\n", "no rows"),
        (f"{RECOMMEND} --acceptance FILE", "head,rank,accuracy\n0,0,1.2\n", "0..1"),
        (f"{RECOMMEND} --acceptance FILE", "head,rank,accuracy\n0,0,nan\n", "not finite"),
        (f"{RECOMMEND} --acceptance FILE", "head,rank,accuracy\n0,0,0.7\n0,1,0.7\n", "sums to"),
        (f"{RECOMMEND} --acceptance FILE", "a,b\n1,2\n", "expected head,rank,accuracy"),
        (f"{RECOMMEND} --acceptance FILE", "position,unconditional_rate\n0,0.5\n1,0.8\n", "rises"),
        (f"{RECOMMEND} --acceptance FILE --draft-runtime cuda-grap", HEADS, "unknown runtime"),
        (f"{RECOMMEND} --acceptance FILE --export vllm --engine-version 0.1", HEADS, "known: 0.24"),
        (f"{TREE} 500 --head-accuracy FILE", HEADS, "500 candidates"),
        (OBSERVE, "", "cannot be read"),
        (OBSERVE, "decoder,spec\n", "columns missing: block_efficiency"),
        (OBSERVE, OBSERVED, "no rows"),
        (OBSERVE, f"{OBSERVED}SD,2,\n", "not a number"),
        (OBSERVE, f"{OBSERVED}SD,2,0\n", "not a number from 1 on"),
        (OBSERVE, f"{OBSERVED}SD,,2\n", "spec is empty"),
        (OBSERVE, f"{OBSERVED}SD,2,5\n", "1 to 3 tokens"),
        (OBSERVE, f"{OBSERVED}XX,2,2\n", "XX"),
        (SCORE, "[]x", "cannot be parsed"),
        (SCORE, '{"paths": [[0, 0]]}', "prefix"),
        (SCORE, "[[0], [0]]", "twice"),
        (SCORE, "[[-1]]", "from 0"),
        (SCORE, "7", "list of paths"),
        ("tree draw --tree FILE -o x.gif", HEADS, "cannot be parsed"),  # before the suffix is looked at
        (TIME, "", "given"),
        (TIME, OPS, "no rows"),
        (TIME, OPS.replace(",dtype", "") + LINEAR, "more fields than the header"),
        (TIME, OPS + LINEAR.replace("64", "many"), "row 1, column m"),
        (TIME, OPS + LINEAR.replace("64", "-1"), "row 1, column m"),
        (TIME, OPS + LINEAR.replace("64", "nan"), "m"),
        (TIME, OPS + LINEAR.replace("fp16", "fp61"), "fp16"),
        (TIME, OPS + DECODE.replace("decode_attention", "decode_attn"), "decode_attention"),
        ("time --gpu a40 --latency roofline --ops FILE", OPS + LINEAR.replace("fp16", "fp8"), "fp8"),
        ("validate --latency roofline FILE", "op,m,n,k,dtype\nmlp_up_proj,64,11008,4096,fp16\n", "time_us"),
        (MOE, EXPERTS + TRITON.format("fp8_block", 16, 300), "column topk: given '300 with experts 128'"),
        (MOE, EXPERTS + TRITON.format("fp9", 16, 8), "unknown dtype 'fp9'; did you mean 'fp8'"),
        (MOE, EXPERTS + TRITON.format("fp8_block", -16, 8), "column tokens: given '-16'"),
        *((f"calibrate --kernels '{name}' --rows FILE", OPS + LINEAR, "kernel")
          for name in ("a b", "Torch", "", "x" * 60)),
    ],
)  # fmt: skip
def test_a_file_that_is_refused(line, text, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.csv").write_text(text)
    (tmp_path / "targets.csv").write_text("decoder,spec\nSD,5\n")
    words = shlex.split(line.replace("FILE", "given.csv").replace("TARGETS", "targets.csv"))
    code = 2 if "calibrate" in line or "--engine-version" in line else 1
    refused(told, *words, code=code)
    assert {path.name for path in tmp_path.iterdir()} == {"given.csv", "targets.csv"}
