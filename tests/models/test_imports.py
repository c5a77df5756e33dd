"""Loading and running a model on the CPU imports neither torch nor transformers; describing one, not even numpy."""

import subprocess
import sys

MODULES = (
    "appliance.loading.model, appliance.models.gemma, appliance.models.gpt2, appliance.models.phi3, "
    "appliance.models.qwen3, appliance.loading.weights"
)


def test_the_cpu_path_imports_neither_torch_nor_transformers() -> None:
    code = f"import sys, {MODULES}; print([m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_describing_a_model_imports_no_numpy() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "import appliance.layers, appliance.models\n"
        "rooms = (appliance.models, appliance.layers)\n"
        "names = [f'{room.__name__}.{each.name}' for room in rooms for each in pkgutil.iter_modules(room.__path__)]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names) > 10, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True False"
