#!/usr/bin/env bash
# Measures a deployment and another OpenAI server on the same machine with the same client and the same work, one after
# the other, and prints the ratios.
#
#   docs/benchmarks/compare.sh RESULTS SPEC PEER_LABEL PEER_URL -- PEER_COMMAND...
#
# PEER_COMMAND must start a server at PEER_URL in the foreground; it is started here and ended here. The same model, please:
# for a GGUF file both sides can read it as it is. PRESETS and REPEATS choose less work for a first look.
set -euo pipefail

results=$1 spec=$2 label=$3 url=$4
[ "$5" = -- ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
shift 5
presets=(${PRESETS:-single offline64 online16 shared-prefix})
repeats=${REPEATS:-3}
root=$(cd "$(dirname "$0")/../.." && pwd)
appliance=${APPLIANCE:-$root/.venv/bin/appliance}
mkdir -p "$results"
peer=

end() {
  [ -z "$peer" ] || { kill -TERM -- "-$peer" 2>/dev/null || true; wait "$peer" 2>/dev/null || true; }
  "$appliance" down "$spec" >/dev/null 2>&1 || true
}
trap end EXIT

measure() {  # NAME ARGUMENTS...
  local name=$1 preset
  shift
  for preset in "${presets[@]}"; do
    "$appliance" bench serve "$@" --preset "$preset" --with repeats="$repeats" --label "$name" \
      --output "$results/$preset-$name.json"
  done
}

"$appliance" apply "$spec"
measure appliance "$spec"
"$appliance" down "$spec"

set -m  # the peer gets a process group of its own
"$@" >"$results/$label.log" 2>&1 &
peer=$!
set +m
until curl --silent --fail --output /dev/null --max-time 2 "${url%/}/v1/models"; do
  kill -0 "$peer" 2>/dev/null || { echo "error: $label ended before it was ready; see $results/$label.log" >&2; exit 1; }
  sleep 0.2
done
measure "$label" --url "$url"

for preset in "${presets[@]}"; do
  echo "== $preset"
  "$appliance" bench compare "$results/$preset-appliance.json" "$results/$preset-$label.json"
done
"$appliance" bench report "$results"/*-*.json --output "$results/report.html"
