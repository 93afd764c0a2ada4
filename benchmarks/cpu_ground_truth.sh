#!/bin/sh
# The whole claim on this CPU, in at most ten minutes: measure operators, fit, predict, run the decoder, compare.
#
#   benchmarks/cpu_ground_truth.sh OUT              three models: 3M, 50M and 300M parameters, fp32, one thread
#   SIZES=1m benchmarks/cpu_ground_truth.sh OUT     the trained decoder: tokens per step and wall clock, four minutes
#   BUDGET=0.5 SIZES=3m benchmarks/cpu_ground_truth.sh OUT      half the time for operators, one model
#
# Each model is a device of its own, since a small one lies in the last-level cache and a large one does not.
# OUT/data holds hardware/ and profiles/ as a --data-dir; OUT/validation.md the comparisons. Leave the machine alone
# meanwhile. Exit 3 where a mean error is above what two passes disagree by and FAIL_ABOVE (10) per cent.
set -eu

out=${1:?give a folder for the results}
python=${PYTHON:-python3}
name=${NAME:-cpu}
fail_above=${FAIL_ABOVE:-10}
share=${BUDGET:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
sim() { "$python" -c 'from medusa_sim.cli import main; main()' "$@"; }

mkdir -p "$out"
rm -rf "$out/data"
: > "$out/validation.md"
failed=0
for size in ${SIZES:-3m 50m 300m}; do
    trained= passes=2
    case $size in
        1m) seconds=75 trained=$root/profiles/checkpoints/python-stdlib-medusa-1 ;;
        3m) seconds=95 batches=1,2,4,8 candidates=4,8,16,32,48,64,96,128 repeats=6 passes=3 ;;
        50m) seconds=110 batches=1,2,4,8 candidates=4,8,16,32,48,64,96,128 repeats=3 ;;
        *) seconds=120 batches=1,4 candidates=4,8,16,32,48,64 repeats=3 ;;
    esac
    seconds=$(echo "$seconds $share" | awk '{print $1 * $2}')
    device=$name-$size
    model=${trained:-$root/benchmarks/models/llama-$size}
    steps=$out/data/profiles/decoder/$device
    rows=$out/data/profiles/operators/$device
    sim measure --device cpu --dtype fp32 --threads 1 --models "$model/config.json" --budget "$seconds" \
        --name "$device" --data-dir "$out/data" > "$out/measure-$size.log" 2>&1 || { tail -3 "$out/measure-$size.log" >&2; exit 1; }
    if [ -n "$trained" ]; then
        sim measure --decoder-runs "$steps" --checkpoint "$trained" --candidates 4,8,16,32,48,64,96,128 \
            > "$out/steps-$size.log" 2>&1
    else
        sim measure --decoder-steps "$steps" --device cpu --name "$device" --dtype fp32 --threads 1 \
            --models "$model/config.json" --batch "$batches" --candidates "$candidates" --repeats "$repeats" \
            --passes "$passes" > "$out/steps-$size.log" 2>&1
    fi || { tail -3 "$out/steps-$size.log" >&2; exit 1; }
    tail -2 "$out/steps-$size.log" | head -1
    sim calibrate --gpu "$device" --kernels torch --rows "$rows"/*.csv --data-dir "$out/data" -o "$out/fit-$size.md"
    for latency in measured calibrated; do
        echo "== $device, $latency"
        outside=refuse
        [ $latency = calibrated ] || outside=calibrated
        code=0
        sim validate --gpu "$device" --kernels torch --latency $latency --outside $outside --decoder "$steps" \
            --data-dir "$out/data" --format md > "$out/one.md" || code=$?
        { echo "## $device, $latency operators"; echo; cat "$out/one.md"; echo; } >> "$out/validation.md"
        cat "$out/one.md"
        [ $code -eq 0 ] || exit $code
    done
    sim validate --gpu "$device" --kernels torch --latency measured --outside calibrated --decoder "$steps" \
        --data-dir "$out/data" --fail-above "$fail_above" > /dev/null 2> "$out/one.log" || { failed=$?; tail -1 "$out/one.log" >&2; }
done
rm -f "$out/one.md" "$out/one.log"
exit $failed
