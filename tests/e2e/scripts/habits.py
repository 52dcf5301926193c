"""What scripts do before their update besides computing: a redo has to put all of it back. Prints a hash of the end."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.chaos.exact.record import fingerprint

WIDTH = 8


class Net(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(2, 2)  # the first parameters have no gradients
        self.online = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))
        self.detour = nn.Linear(WIDTH, WIDTH)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor, detour: bool) -> Tensor:
        for slow, online in zip(self.slow.parameters(), self.online.parameters(), strict=True):
            slow.data = 0.9 * slow.data + 0.1 * online.data
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # another tensor in its place
        y: Tensor = self.online(x - self.mean)
        return mse_loss(self.detour(y) if detour else y, self.slow(x))


job = everstep.init()
torch.manual_seed(1)
model = DistributedDataParallel(Net(), find_unused_parameters=True)
critic = DistributedDataParallel(nn.Linear(WIDTH, 1))
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizers = [torch.optim.AdamW(trained, weight_decay=0.1), torch.optim.Adam(critic.parameters())]
average: dict[str, Any] = {"count": 0, "of": model.module.detour.weight.detach().clone()}
job.protect(model=[model, critic], optimizer=optimizers, extra={"average": average})
for step in job.steps(8):
    with step:
        average["count"] += 1
        random = torch.Generator().manual_seed(step.index * job.world_size + job.rank)
        x = torch.randn(4, WIDTH, generator=random)
        if step.index == 2:
            model.module.detour.bias.requires_grad_(False)  # for good
        critic.requires_grad_(False)  # for a while
        (model(x, step.index % 2 == 0) - critic.module(model.module.online(x)).mean()).backward()
        critic.requires_grad_(True)
        critic(x).mean().backward()
        model.eval()
        with torch.no_grad():
            dist.all_reduce(model.module.online(x).mean())  # an evaluation
        model.train()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        average["of"].data.lerp_(model.module.detour.weight.data, 0.1)
print(f"ends on {fingerprint([model, critic, *optimizers, average])}")
