#!/bin/sh
# The whole claim on this CPU, in about ten minutes: operators and the decoder's steps measured in turns, kernels
# fitted, steps predicted and compared.
#
#   benchmarks/cpu_ground_truth.sh OUT              three models: 3M, 50M and 300M parameters, fp32, one thread
#   DTYPE=bf16 SIZES="50m 300m" benchmarks/cpu_ground_truth.sh OUT      in half precision (CPUs with avx512_bf16)
#   SIZES=1m benchmarks/cpu_ground_truth.sh OUT     the trained decoder: tokens per step and wall clock, four minutes
#   BUDGET=0.5 SIZES=3m benchmarks/cpu_ground_truth.sh OUT      half the time, one model
#   NAME=cpu-epyc-genoa benchmarks/cpu_ground_truth.sh OUT      the device's name, which the kept files carry
#
# Each model is a device of its own, since a small one lies in the last-level cache and a large one does not; so is
# each dtype. OUT/data holds hardware/ and profiles/ as a --data-dir; OUT/validation.md the comparisons, each behind
# the line that says how exactly this run can judge. Other work on the machine widens that floor; it does not stop the
# run. Ctrl-C ends the measurement of a model; what there is of it is compared all the same, and later models are left
# out. Exit 3 where a mean error is above the floor and FAIL_ABOVE
# (10) per cent.
set -eu

out=${1:?give a folder for the results}
python=${PYTHON:-python3}
dtype=${DTYPE:-fp32}
name=${NAME:-cpu}
fail_above=${FAIL_ABOVE:-10}
share=${BUDGET:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
sim() { "$python" -c 'from medusa_sim.cli import main; main()' "$@"; }
suffix=
[ "$dtype" = fp32 ] || suffix=-$dtype

mkdir -p "$out"
rm -rf "$out/data"
: > "$out/validation.md"
failed=0 stopped=0
trap 'stopped=1' INT
for size in ${SIZES:-3m 50m 300m}; do
    trained=
    case $size in
        1m) seconds=75 trained=$root/profiles/checkpoints/python-stdlib-medusa-1 ;;
        3m) seconds=150 batches=1,2,4,8 candidates=4,8,16,32,64,128 ;;
        50m) seconds=165 batches=1,2,4 candidates=4,8,16,32,64 ;;
        *) seconds=185 batches=1,4 candidates=4,8,16,32,64 ;;
    esac
    seconds=$(echo "$seconds $share" | awk '{print $1 * $2}')
    device=$name-$size$suffix
    model=${trained:-$root/benchmarks/models/llama-$size}
    steps=$out/data/profiles/decoder/$device
    rows=$out/data/profiles/operators/$device
    set -- --device cpu --dtype "$dtype" --threads 1 --models "$model/config.json" --budget "$seconds" \
        --name "$device" --data-dir "$out/data"
    if [ -n "$trained" ]; then
        sim measure operators "$@" > "$out/measure-$size.log" 2>&1 &&
            sim measure runs "$steps" --checkpoint "$trained" --candidates 4,8,16,32,48,64,96,128 \
                > "$out/steps-$size.log" 2>&1
    else
        sim measure steps "$steps" --with-operators --batch "$batches" --candidates "$candidates" "$@" \
            > "$out/measure-$size.log" 2>&1
    fi || [ $stopped -eq 1 ] || { tail -3 "$out"/*-"$size".log >&2; exit 1; }
    [ -e "$steps/steps.csv" ] || [ -e "$steps/runs.csv" ] || { echo "$device: stopped before anything was measured" >&2; exit 130; }
    sim calibrate rows "$rows"/*.csv --gpu "$device" --kernels torch --data-dir "$out/data" --overwrite -o "$out/fit-$size.md" \
        2> "$out/fit-$size.log" || { tail -1 "$out/fit-$size.log" >&2; exit 1; }
    for latency in measured calibrated; do
        echo "== $device, $latency"
        fallback=refuse
        [ $latency = calibrated ] || fallback=calibrated
        code=0
        sim validate decoder "$steps" --gpu "$device" --kernels torch --latency $latency --fallback $fallback \
            --data-dir "$out/data" --format md > "$out/one.md" 2> "$out/one.log" || code=$?
        [ $code -eq 0 ] || { cat "$out/one.log" >&2; exit $code; }
        { head -1 "$out/one.log"; echo; cat "$out/one.md"; echo; } > "$out/part.md"
        cat "$out/part.md"
        { echo "## $device, $latency operators"; echo; cat "$out/part.md"; } >> "$out/validation.md"
    done
    sim validate decoder "$steps" --gpu "$device" --kernels torch --latency measured --fallback calibrated \
        --data-dir "$out/data" --fail-above "$fail_above" > /dev/null 2> "$out/one.log" || { failed=$?; tail -1 "$out/one.log" >&2; }
    [ $stopped -eq 0 ] || { echo "stopped in $device; later models are left out" >&2; failed=130; break; }
done
rm -f "$out/one.md" "$out/one.log" "$out/part.md"
exit $failed
