"""Loading and running a model on the CPU imports neither torch nor transformers."""

import subprocess
import sys

MODULES = (
    "appliance.loading.model, appliance.models.gemma3, appliance.models.gpt2, appliance.models.phi3, "
    "appliance.models.qwen3, appliance.loading.weights"
)


def test_the_cpu_path_imports_neither_torch_nor_transformers() -> None:
    code = f"import sys, {MODULES}; print([m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
