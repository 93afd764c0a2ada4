#!/bin/sh
# The whole claim on this CPU, in about ten minutes: operators and the decoder's steps measured in turns, kernels
# fitted, steps predicted and compared.
#
#   benchmarks/cpu_ground_truth.sh OUT              three models: 3M, 50M and 300M parameters, fp32, one thread
#   DTYPE=bf16 SIZES="50m 300m" benchmarks/cpu_ground_truth.sh OUT      in half precision (CPUs with avx512_bf16)
#   SIZES=1m benchmarks/cpu_ground_truth.sh OUT     the trained decoder: tokens per step and wall clock, four minutes
#   PACKED=1 DTYPE=bf16 SIZES=70m benchmarks/cpu_ground_truth.sh OUT      the same text from 70M weights, which lie in
#                                                   no cache and are laid out once for the library: here Medusa gains
#   BUDGET=0.5 SIZES=3m benchmarks/cpu_ground_truth.sh OUT      half the usual time, one model (too short a time is said)
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
packed=${PACKED:+--packed}
fail_above=${FAIL_ABOVE:-10}
share=${BUDGET:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
sim() { "$python" -c 'from medusa_sim.cli import main; main()' "$@"; }
suffix=
[ "$dtype" = fp32 ] || suffix=-$dtype
[ -z "$packed" ] || suffix=$suffix-packed

# What ended a model's run: the last line of a log, and where time was short, what to do about it.
give_up() {
    if grep -qE "a fit needs|kernel for|larger --budget" "$1"; then
        echo "$device: $seconds s are too few to measure what a fit needs; BUDGET (now $share) is the share of a model's" \
            "usual time, 1 is all of it: give a larger one" >&2
    else
        tail -n 1 "$1" >&2
    fi
    exit "${2:-1}"
}

mkdir -p "$out"
rm -rf "$out/data"
: > "$out/validation.md"
failed=0 stopped=0
trap 'stopped=1' INT
for size in ${SIZES:-3m 50m 300m}; do
    trained=
    case $size in
        1m)
            seconds=75 batches=1,2,4,8 candidates=4,8,16,32,48,64,96,128
            trained=$root/profiles/checkpoints/python-stdlib-medusa-1
            ;;
        70m)
            seconds=120 batches=1,2 candidates=2,3,4,6,8,16 trained=$out/wide/python-stdlib-medusa-2
            "$python" "$root/benchmarks/widened.py" "$root/profiles/checkpoints/${trained##*/}" "$trained" --times 8
            ;;
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
        --name "$device" --data-dir "$out/data" $packed
    log=$out/measure-$size.log
    measured=$steps
    [ -z "$trained" ] || measured=$out/steps/$device
    sim measure steps "$measured" --with-operators --batch "$batches" --candidates "$candidates" "$@" > "$log" 2>&1 &&
        if [ -n "$trained" ]; then
            log=$out/runs-$size.log
            sim measure runs "$steps" --checkpoint "$trained" --dtype "$dtype" --threads 1 --batch "$batches" \
                --candidates "$candidates" $packed > "$log" 2>&1
        fi || [ $stopped -eq 1 ] || give_up "$log"
    [ -e "$steps/steps.csv" ] || [ -e "$steps/runs.csv" ] || { echo "$device: stopped before anything was measured" >&2; exit 130; }
    sim calibrate rows "$rows"/*.csv --gpu "$device" --kernels torch --data-dir "$out/data" --overwrite -o "$out/fit-$size.md" \
        2> "$out/fit-$size.log" || give_up "$out/fit-$size.log"
    : > "$out/part.md"
    for latency in measured calibrated; do
        fallback=refuse
        [ $latency = calibrated ] || fallback=calibrated
        code=0
        sim validate decoder "$steps" --gpu "$device" --kernels torch --latency $latency --fallback $fallback \
            --data-dir "$out/data" --format md > "$out/one.md" 2> "$out/one.log" || code=$?
        [ $code -eq 0 ] || give_up "$out/one.log" $code
        { echo "## $device, $latency operators"; echo; head -1 "$out/one.log"; echo; cat "$out/one.md"; echo; } >> "$out/part.md"
    done
    [ -n "$trained" ] || "$python" "$root/benchmarks/peers.py" "$model" --dtype "$dtype" >> "$out/part.md" 2> "$out/one.log" ||
        tail -n 1 "$out/one.log" >&2
    cat "$out/part.md"
    cat "$out/part.md" >> "$out/validation.md"
    sim validate decoder "$steps" --gpu "$device" --kernels torch --latency measured --fallback calibrated \
        --data-dir "$out/data" --fail-above "$fail_above" > /dev/null 2> "$out/one.log" || { failed=$?; tail -1 "$out/one.log" >&2; }
    [ $stopped -eq 0 ] || { echo "stopped in $device; later models are left out" >&2; failed=130; break; }
done
rm -f "$out/one.md" "$out/one.log" "$out/part.md"
exit $failed
