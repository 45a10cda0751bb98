"""What the scripts that run flash-linear-attention (fla) on a GPU share."""

import os

import torch
import triton
from triton.runtime.autotuner import Autotuner


def import_fla():
    """Imports fla and transformers and prints the versions. Triton's autotuner is kept to the first choices of a kernel
    (FLA_AUTOTUNE_CONFIGS, 2 without): which one runs changes the time, not the mathematics."""
    kept = int(os.environ.get("FLA_AUTOTUNE_CONFIGS", "2"))
    original = Autotuner.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.configs = self.configs[:kept]

    Autotuner.__init__ = init
    import fla
    import transformers

    print(f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}, fla {fla.__version__}, {torch.cuda.get_device_name()}", flush=True)
    return transformers
