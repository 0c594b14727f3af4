#!/usr/bin/env bash
# The figures that only a GPU can give, in one call of about eight minutes; each part has its limit.
#   benchmarks/gpu.sh                                   without another package beside it
#   PEER="python bench_peers.py …" benchmarks/gpu.sh    and with one, see beside_peer.py
set -u
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
part() { # seconds, title, command …
  local seconds=$1 title=$2
  shift 2
  printf '\n== %s\n' "$title"
  timeout "$seconds" "$@" || printf 'failed or over %s seconds: %s\n' "$seconds" "$*"
}
part 130 "overhead" "$python" benchmarks/overhead.py --device cuda --blocks 10 --steps 60
[ -n "${PEER:-}" ] && part 260 "beside the other package" "$python" benchmarks/beside_peer.py --peer "$PEER"
part 40 "pause of a checkpoint" "$python" benchmarks/checkpoint_pause.py
for flag in --no-deterministic --deterministic; do
  run=$(mktemp -d)/run
  part 60 "eager steps, $flag" "$python" -m quintet train image/vqgan --run "$run" --steps 150 \
    --evaluate-every 0 --save-every 0 --images.valid-limit 64 --no-compile "$flag"
done
exit 0
