#!/bin/sh
# Dense products on the current GPU: all tables on record into a folder, each as far as its share of the time goes.
#
#     tests/benchmarks/products_on_record.sh docs/results/h200 [SECONDS]
#
# 400 seconds do all of it on an H200 with 16 cores to compile on, which is what most of the time goes into: some 5,700
# kernels of half a second. A shorter run leaves out what comes last.
set -u
folder=${1:?the folder of the results}
seconds=${2:-400}
tables="${PYTHON:-python3} -m tests.benchmarks"
share() { echo $((seconds * $1 / 100)); }
within() { limit=$(($(share "$1") + 8)); shift; timeout -k 5 "$limit" "$@"; }

mkdir -p "$folder"
within 70 $tables.tune --widths 1-64 --limit "$(share 70)" --json "$folder/tuned.json"
within 4 $tables.products bench --device gpu --op combine_dot,update_gram --basis 64,128,256,512 --widths 4,8,16 \
    --seconds "$(share 4)" --json "$folder/sweeps.json"
within 7 $tables.products bench --device gpu --op dot,combine,gram,update,inplace --seconds "$(share 7)" --json "$folder/kernels.json"
