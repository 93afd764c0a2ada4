#!/bin/sh
# Everything that a GPU machine has to tell: the operators of Llama-7B, 13B and Llama-3-8B, and the decoder's
# steps for Llama-7B with random weights in fp16, as CUDA graphs. About nine minutes a call; called again with
# the same folder, it goes on where the operators ended and measures the steps anew.
#
#   benchmarks/gpu_ground_truth.sh OUT            steps to OUT/steps, operators to OUT/operators
#   SECONDS_IN_ALL=300 DEVICE=cuda:1 PYTHON=python3.12 benchmarks/gpu_ground_truth.sh OUT
#   DEVICE=cpu DTYPE=fp32 STEP_MODEL=benchmarks/models/llama-3m MODELS=benchmarks/models/llama-3m/config.json \
#       BATCHES=1 SECONDS_IN_ALL=60 benchmarks/gpu_ground_truth.sh OUT    a rehearsal without a GPU
#
# OUT/operators becomes profiles/operators/<gpu>, OUT/steps profiles/decoder/<gpu>.
set -eu

out=${1:?give a folder for the results}
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
seconds=${SECONDS_IN_ALL:-540}
dtype=${DTYPE:-fp16}
root=$(cd "$(dirname "$0")/.." && pwd)
began=$(date +%s)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 MEDUSA_SIM_DATA_DIR="$scratch"

mkdir -p "$out"
"$python" "$root/benchmarks/decoder_steps.py" "$out/steps" --device "$device" --dtype "$dtype" --models "${STEP_MODEL:-llama-7b}" \
    --batches "${BATCHES:-1,4,16}" --candidates 16,32,48,64,80,96,112,128 --seq-len 1024 --repeats 20 --passes 2

left=$((seconds - $(date +%s) + began))
resume=
[ ! -e "$out/operators/meta.toml" ] || resume=--resume
"$python" -c 'from medusa_sim.cli import main; main()' measure --device "$device" --dtype "$dtype" \
    --models "${MODELS:-llama-7b,llama-13b,llama-3-8b}" --budget "$left" --out "$out/operators" $resume
