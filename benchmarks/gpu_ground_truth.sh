#!/bin/sh
# Everything that a GPU machine has to tell: the operators of Llama-7B, 13B and Llama-3-8B, and the decoder's
# steps for Llama-7B with random weights in fp16, as CUDA graphs. About nine minutes a call; called again with
# the same folder, it goes on where the operators ended and measures the steps anew.
#
#   benchmarks/gpu_ground_truth.sh OUT            steps to OUT/steps, operators to OUT/operators
#   SECONDS_IN_ALL=300 DEVICE=cuda:1 PYTHON=python3.12 benchmarks/gpu_ground_truth.sh OUT
#   DEVICE=cpu DTYPE=fp32 STEP_MODEL=benchmarks/models/llama-3m/config.json \
#       MODELS=benchmarks/models/llama-3m/config.json BATCHES=1 SECONDS_IN_ALL=60 \
#       benchmarks/gpu_ground_truth.sh OUT        a rehearsal without a GPU
#
# OUT/operators becomes profiles/operators/<gpu>, OUT/steps profiles/decoder/<gpu>. A card without a hardware
# file gets one in OUT/data, which is the --data-dir of the commands that follow.
set -eu

out=${1:?give a folder for the results}
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
seconds=${SECONDS_IN_ALL:-540}
dtype=${DTYPE:-fp16}
root=$(cd "$(dirname "$0")/.." && pwd)
began=$(date +%s)
mkdir -p "$out/data"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 MEDUSA_SIM_DATA_DIR="$out/data"
sim() { "$python" -c 'from medusa_sim.cli import main; main()' "$@"; }

sim measure --decoder-steps "$out/steps" --device "$device" --dtype "$dtype" --models "${STEP_MODEL:-llama-7b}" \
    --batch "${BATCHES:-1,4,16}" --candidates 16..128:16 --seq-len 1024 --repeats 20 --passes 2

left=$((seconds - $(date +%s) + began))
if [ "$left" -lt 10 ]; then
    echo "the steps took all of SECONDS_IN_ALL=$seconds; call again with more for the operators" >&2
    exit 1
fi
resume=
[ ! -e "$out/operators/meta.toml" ] || resume=--resume
sim measure --device "$device" --dtype "$dtype" --models "${MODELS:-llama-7b,llama-13b,llama-3-8b}" \
    --budget "$left" --out "$out/operators" --data-dir "$out/data" $resume
