#!/usr/bin/env bash
# The figures that only a GPU can give, of all rooms; each part has its limit and its own empty caches.
#   benchmarks/gpu.sh                      the first five: about half an hour
#   benchmarks/gpu.sh steps peers          some of: steps peers generation engine resume text large
#   PEERS="python bench_peers.py" benchmarks/gpu.sh peers    and the other packages in the same call
set -u
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
recipes=(image/vqgan video/tokenizer speech/voicebox music/mulan mesh/autoencoder mesh/transformer)
part() { # seconds, title, command …
  local seconds=$1 title=$2 begin=$SECONDS
  shift 2
  export TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR
  TRITON_CACHE_DIR=$(mktemp -d) TORCHINDUCTOR_CACHE_DIR=$(mktemp -d)
  printf '\n== %s\n' "$title"
  timeout "$seconds" "$@" || printf 'failed or over %s seconds: %s\n' "$seconds" "$*"
  printf '== %s seconds\n' $((SECONDS - begin))
}
steps() { # the recipes as they are: milliseconds, kernels, GPU busy, seconds to the tenth step
  for recipe in "${recipes[@]}"; do
    part 150 "$recipe" "$python" benchmarks/steps.py "$recipe" --ways captured both
  done
}
peers() { # the sizes of the other packages, and these beside ours
  local room system
  for room in image:image_vqgan video:video_tokenizer music:mulan speech:voicebox; do
    system=${room#*:} room=${room%:*}
    part 330 "$room, size of the other package" "$python" "benchmarks/${room}_speed.py" --size peer \
      ${PEERS:+--peer "$PEERS $system --size base --device cuda --precision bf16"}
  done
  part 400 "mesh, size of the other package" "$python" benchmarks/mesh_speed.py \
    --only autoencoder transformer ${PEERS:+--peer "$PEERS"}
}
generation() {
  part 120 "generation of meshes" "$python" benchmarks/mesh_speed.py --only generation
}
engine() {
  part 120 "overhead" "$python" benchmarks/overhead.py --device cuda --blocks 12 --steps 20
  part 70 "overhead, small" "$python" benchmarks/overhead.py --device cuda --size small --blocks 12
  part 60 "kernels" "$python" benchmarks/kernels.py --device cuda
  part 40 "pause of a checkpoint" "$python" benchmarks/checkpoint_pause.py
  part 400 "feeding" "$python" benchmarks/feeding.py ${DATA:+--data "$DATA"}
}
resume() { # a deterministic run once more from its middle: the end must be the same bytes
  local run
  run=$(mktemp -d)/run
  part 75 "deterministic run" "$python" -m quintet train image/vqgan --run "$run" --steps 150 \
    --evaluate-every 0 --save-every 75 --images.valid-limit 64 --deterministic
  cp -r "$run" "$run.again" && rm -r "$run.again/checkpoints/step-00000150"
  part 60 "resumed from its middle" "$python" -m quintet resume "$run.again"
  cmp "$run"/checkpoints/step-00000150/vae.safetensors \
    "$run.again"/checkpoints/step-00000150/vae.safetensors && printf 'equal byte for byte\n'
}
text() { # text to image: speed, and the share of pictures that show their held-out captions
  local tokenizer
  tokenizer=$(mktemp -d)/tokenizer
  for family in flow maskgit; do
    part 60 "generation of images, $family" "$python" benchmarks/generator_speed.py "$family" sample
    part 80 "training, share of the matmul rate, $family" \
      "$python" benchmarks/generator_speed.py "$family" train --compile
  done
  part 60 "generation in few steps" "$python" benchmarks/generator_speed.py flow sample --few 4
  part 90 "tokenizer" "$python" -m quintet train image/vqgan --images.builtin figures --steps 900 \
    --losses.adversarial none --evaluate-every 0 --run "$tokenizer"
  part 450 "text to image" "$python" benchmarks/learning.py image/maskgit --flags "--tokenizer $tokenizer"
}
large() { # recipes for real projects: begun, stopped and resumed
  part 900 "large recipes" "$python" benchmarks/large.py --seconds 10
}
for name in "${@:-steps peers generation engine resume}"; do
  for chosen in $name; do
    case $chosen in
      steps | peers | generation | engine | resume | text | large) "$chosen" ;;
      *) printf 'there is no part %s\n' "$chosen" && exit 2 ;;
    esac
  done
done
exit 0
