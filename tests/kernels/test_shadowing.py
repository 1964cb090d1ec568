"""Our folder bears the name of a package that transformers looks for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import kernels
assert kernels.__file__.startswith(sys.argv[1]), kernels.__file__
import torch, transformers
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils.import_utils import is_kernels_available
config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                     num_attention_heads=1, num_key_value_heads=1)
AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(sys.argv[2])
assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 8)
assert not is_kernels_available()
"""


def test_transformers_imports_and_loads_a_model_beside_our_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_folder_itself_holds_only_a_docstring() -> None:
    text = (ROOT / "kernels" / "__init__.py").read_text()
    assert text.startswith('"""')
    assert text.rstrip().endswith('"""')
    assert text.count('"""') == 2
