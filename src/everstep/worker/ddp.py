"""DistributedDataParallel: its gradient buckets have to be laid out alike on every rank, in every generation.

DDP begins with one layout and rebuilds it once, before its second Forward, in the order that rank 0 broadcasts. A
replacement with the first layout among survivors with the second reduces different things without any error. So in a
recovery every rank, survivor or not, makes its reducer anew, and the broadcast that was seen then is fed to a rebuild
now. That gives the layout exactly, without data, whatever the order in which gradients come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._distributed_c10d import _register_comm_hook
from torch.nn.parallel import DistributedDataParallel

from everstep.errors import ConfigError
from everstep.worker.groups.world import World
from everstep.worker.state.flags import Flags

_STATELESS_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "noop_hook")


class Layout:
    """What decides a reducer's buckets: numbers only, so it can be compared and sent."""

    __slots__ = ("broadcasts", "visits")

    def __init__(self, broadcasts: list[list[int]] | None = None, visits: list[int] | None = None) -> None:
        self.broadcasts = broadcasts or []
        """What rank 0 sent at the rebuild: order of the parameters, sizes of the buckets. Empty before it."""
        self.visits = visits or []
        """With a static graph: how often each parameter's gradient came in the first Backward. Empty before it."""

    def plain(self) -> list[Any]:
        return [self.broadcasts, self.visits]


class Buckets:
    """The reducer of one DDP module."""

    def __init__(self, ddp: DistributedDataParallel, name: str, world: World) -> None:
        _check(ddp, name)
        self.ddp = ddp
        self.name = name
        self.layout = Layout()
        self._at_start = self.layout, self.syncs_next
        self._world = world
        self._counting: list[Any] = []
        self._trained = {id(parameter) for parameter in ddp.parameters() if parameter.requires_grad}
        """What DDP was built for; the script may freeze some of it later, for a while or for good."""
        ddp.register_forward_pre_hook(self._before_forward)

    @property
    def syncs_next(self) -> bool:
        """Whether the next Forward begins with rank 0's buffers: not so if the one before was in `no_sync` or without
        gradients. All ranks have to think the same of it, whichever part of a step they were interrupted in."""
        return self.ddp.require_forward_param_sync

    @syncs_next.setter
    def syncs_next(self, value: bool) -> None:
        self.ddp.require_forward_param_sync = value

    def plain(self) -> list[Any]:
        """What a newcomer has to have too."""
        return [*self.layout.plain(), self.syncs_next]

    def take(self, plain: Sequence[Any]) -> None:
        broadcasts, visits, self.syncs_next = plain
        self.layout = Layout(broadcasts, visits)

    # ── while training ───────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """A step begins: a redo of it has to begin with the same layout."""
        self._at_start = self.layout, self.syncs_next

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        """DDP would rebuild a moment later; here the broadcast is seen."""
        if not torch.is_grad_enabled():
            return
        self._rebuild_if_due()
        if self.ddp.static_graph and not self.layout.visits and self.ddp.require_backward_grad_sync:
            if self._counting:
                self._take_visits()
            else:
                self._count_visits()

    def _rebuild_if_due(self) -> None:
        if self.layout.broadcasts:
            return
        with self._world.capturing() as captured:
            rebuilt = self.ddp.reducer._rebuild_buckets()
        if rebuilt:
            self.ddp._has_rebuilt_buckets = True
            self.layout = Layout([result[0].tolist() for result in captured], self.layout.visits)

    def _count_visits(self) -> None:
        """In the first Backward of a static graph DDP counts too, and holds every later one to it."""
        visits = [0] * len(self._parameters())

        def count(number: int) -> Any:
            def visited(_: torch.Tensor) -> None:
                visits[number] += 1

            return visited

        self._counting = [
            parameter.register_post_accumulate_grad_hook(count(number))
            for number, parameter in enumerate(self._parameters())
        ]
        self._visits = visits

    def at_barrier(self) -> None:
        """All gradients are there. What DDP would do before the next Forward is done now, while a failure still means
        a redo: the rebuild, because it comes from this Backward; and rank 0's buffers, which only rank 0 has."""
        if self._counting:
            self._take_visits()
        self._rebuild_if_due()
        if self.ddp.will_sync_module_buffers():
            self.ddp._sync_buffers()

    def _take_visits(self) -> None:
        self._stop_counting()
        self.layout = Layout(self.layout.broadcasts, self._visits)

    def _stop_counting(self) -> None:
        for hook in self._counting:
            hook.remove()
        self._counting = []

    # ── in a recovery ────────────────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """The step is dropped: the layout is the one that it began with."""
        self._stop_counting()
        self.layout, self.syncs_next = self._at_start

    def renew(self) -> None:
        """A reducer that knows nothing of what was cut off, in this layout."""
        ddp = self.ddp
        with self._world.alone(), self._as_built():
            ddp.reducer._remove_autograd_hooks()
            parameters, sparse = ddp._build_params_for_reducer()
            names = ddp._build_debug_param_to_name_mapping(parameters)
            ddp._has_rebuilt_buckets = False
            ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
            for hook, state in ddp._comm_hooks:
                _register_comm_hook(ddp.reducer, state, hook)
            if ddp.static_graph:
                ddp.reducer._set_static_graph()
                ddp.logger._set_static_graph()  # type: ignore[union-attr]
                ddp._static_graph_delay_allreduce_enqueued = bool(self.layout.visits)
                self._pretend_first_step()
            self._rebuild()

    @contextmanager
    def _as_built(self) -> Iterator[None]:
        """What is frozen now, and is left out of a reducer, would never be reduced again."""
        flags = Flags((), self.ddp.parameters())
        before = flags.read()
        flags.put([[], [id(parameter) in self._trained for parameter in self.ddp.parameters()]])
        try:
            yield
        finally:
            flags.put(before)

    def _rebuild(self) -> None:
        if self.layout.broadcasts:
            device = self._parameters()[0].device
            told = [[torch.tensor(numbers, dtype=torch.int32, device=device)] for numbers in self.layout.broadcasts]
            self.ddp.reducer._push_all_rebuilt_params()
            with self._world.alone(told):
                self.ddp.reducer._rebuild_buckets()
            self.ddp._has_rebuilt_buckets = True

    def _pretend_first_step(self) -> None:
        """The reducer of a static graph has to have seen a first Backward: the same visits, with nothing in them."""
        reducer, parameters = self.ddp.reducer, self._parameters()
        if not self.layout.visits:
            return
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        for visit in range(max(self.layout.visits)):
            chain = torch.zeros((), requires_grad=True)
            for parameter, count in zip(parameters, self.layout.visits, strict=True):
                if count > visit:
                    chain = _Touch.apply(chain, parameter)  # type: ignore[no-untyped-call]
            chain.backward()
        reducer._delay_all_reduce()  # type: ignore[attr-defined]
        for parameter in parameters:
            parameter.grad = None

    def private(self) -> dict[str, torch.Tensor]:
        """Buffers that each rank has for itself: DDP was told not to send those of rank 0."""
        if self.ddp.broadcast_buffers:
            return {}
        return {f"buffer {self.name}.{name}": buffer for name, buffer in self.ddp.named_buffers()}

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.ddp._module_parameters if id(parameter) in self._trained]


class _Touch(torch.autograd.Function):
    """In Backward the parameter gets a gradient of zeros."""

    @staticmethod
    def forward(context: Any, chain: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(parameter)
        return chain.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (parameter,) = context.saved_tensors
        return gradient, torch.zeros_like(parameter)


def _check(ddp: DistributedDataParallel, name: str) -> None:
    """Refuse what could not be made again on a replacement."""
    for hook, _ in ddp._comm_hooks:
        if getattr(hook, "__name__", "") not in _STATELESS_HOOKS:
            raise ConfigError(
                f"{name}: the communication hook {getattr(hook, '__qualname__', hook)!r} is not supported: it may hold "
                f"state that a replacement would not have; supported are {', '.join(_STATELESS_HOOKS)}"
            )
    unsupported = {
        "mixed_precision": ddp.mixed_precision is not None,
        "delay_all_reduce_named_params": bool(ddp._delay_all_reduce_params),
        "the Python reducer": bool(ddp._use_python_reducer),
        "a device_mesh inside a larger one (use replicate() there)": _has_lost_its_parameters(ddp),
        "parameters frozen or unfrozen between its making and protect()": _has_been_frozen(ddp),
        "a built-in communication hook": not ddp._comm_hooks and bool(_logged(ddp, "comm_hook")),
    }
    for option, used in unsupported.items():
        if used:
            raise ConfigError(f"{name}: DistributedDataParallel with {option} is not supported; leave it out")
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.parameters()):
        raise ConfigError(
            f"{name}: an optimizer inside Backward updates before the barrier; call optimizer.step() instead"
        )


def _has_lost_its_parameters(ddp: DistributedDataParallel) -> bool:
    """Between two Forwards DDP takes tensor-parallel parameters out of their modules, so nobody can protect them."""
    mesh = getattr(ddp, "device_mesh", None)
    return mesh is not None and mesh._get_root_mesh() != mesh


def _has_been_frozen(ddp: DistributedDataParallel) -> bool:
    """Its reducer has other parameters than one that is made anew would have."""
    return len({id(each) for each in ddp._module_parameters if each.requires_grad}) != int(
        _logged(ddp, "num_parameter_tensors")
    )


def _logged(ddp: DistributedDataParallel, key: str) -> Any:
    return ddp._get_ddp_logging_data().get(key)


def buckets_of(modules: Iterable[tuple[str, torch.nn.Module]], world: World) -> list[Buckets]:
    """One for each DDP module among these and inside them."""
    return [
        Buckets(module, f"{name}.{path}".rstrip("."), world)
        for name, root in modules
        for path, module in root.named_modules()
        if isinstance(module, DistributedDataParallel)
    ]


def layouts(buckets: Sequence[Buckets]) -> list[Any]:
    return [bucket.plain() for bucket in buckets]


def take_layouts(buckets: Sequence[Buckets], plain: Sequence[Any]) -> None:
    for bucket, taken in zip(buckets, plain, strict=True):
        bucket.take(taken)
