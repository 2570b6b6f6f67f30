#!/bin/sh
# All that needs a GPU, in one command: are the kernels right on it, and how near do they come to
# what the memory allows.
#
#     benchmarks/gpu/run.sh [--minutes 8] [--only SECTION,...] [--out FOLDER]
#     benchmarks/gpu/run.sh --dry-run        the same path on a CPU, at tiny sizes; nothing is timed
#
# PYTHON names the interpreter; else .venv/bin/python, else python3. It needs torch and triton, for
# the sections decode_step and end_to_end also what servekit needs, and transformers to compare.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
for word in "$@"; do
    # Triton reads this once, when it is imported
    [ "$word" = --dry-run ] && export TRITON_INTERPRET=1 OMP_NUM_THREADS=1
done
exec "$PYTHON" -m benchmarks.gpu "$@"
