"""Read a checkpoint of examples/ddp.py with torch alone, as one would to evaluate it elsewhere.

everstep need not be installed; torch needs the package `safetensors` for it.

everstep run --nproc 4 --run-dir runs/a examples/ddp.py
python examples/read_checkpoint.py runs/a/checkpoints/$(cat runs/a/checkpoints/latest)
"""

import sys

import torch
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
state = {"model": net.state_dict()}
load(state, storage_reader=HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
net.load_state_dict(state["model"])

net.eval()
x = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1))
right = (net(x).argmax(1) == x[:, :10].argmax(1)).float().mean()
print(f"{right:.0%} of 1000 new samples are right")
