#!/usr/bin/env bash
# The figures that only a GPU can give, in one call of about ten minutes; each part has its limit.
#   benchmarks/gpu.sh                                   without another package beside it
#   PEER="python bench_peers.py …" benchmarks/gpu.sh    and with one, beside ours
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
part 120 "overhead" "$python" benchmarks/overhead.py --device cuda --blocks 12 --steps 20
part 70 "overhead, small" "$python" benchmarks/overhead.py --device cuda --size small --blocks 12
[ -n "${PEER:-}" ] && part 330 "beside the other package" "$python" benchmarks/image_speed.py --no-eager --peer "$PEER"
part 60 "kernels" "$python" benchmarks/kernels.py --device cuda
part 40 "pause of a checkpoint" "$python" benchmarks/checkpoint_pause.py
for flag in --no-deterministic --deterministic; do
  run=$(mktemp -d)/run
  part 75 "eager steps, $flag" "$python" -m quintet train image/vqgan --run "$run" --steps 150 \
    --evaluate-every 0 --save-every 75 --images.valid-limit 64 --no-compile "$flag"
done
resumed() { # the deterministic run once more from its middle: the end must be the same bytes
  cp -r "$run" "$run.again" && rm -r "$run.again/checkpoints/step-00000150" &&
    "$python" -m quintet resume "$run.again" &&
    cmp "$run"/checkpoints/step-00000150/vae.safetensors \
      "$run.again"/checkpoints/step-00000150/vae.safetensors &&
    printf 'resumed: equal byte for byte\n'
}
printf '\n== resume, --deterministic\n'
resumed || printf 'resume differs or failed\n'
exit 0
