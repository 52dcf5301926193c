"""The variants of the exact run that tests and the matrix choose from: each option is in at least one of them."""

from __future__ import annotations

from itertools import chain

from everstep.chaos.exact.recipe import Recipe

MANY_BUCKETS = 0.001
"""MB: so small that these models have several buckets, which DDP arranges anew after the first Backward."""

VARIANTS: dict[str, Recipe] = {
    "mlp": Recipe(bucket_cap=MANY_BUCKETS, backwards=True),
    "mlp-default": Recipe(optimizer="sgd", ema="module"),
    "mlp-unused": Recipe(find_unused=True, bucket_cap=MANY_BUCKETS, frozen=True, ema="dict", optimizer="sgd"),
    "mlp-static": Recipe(static_graph=True, bucket_view=True, bucket_cap=MANY_BUCKETS, scaler="fp16"),
    "mlp-static-accumulate": Recipe(static_graph=True, accumulate=3, optimizer="adafactor", clip=True),
    "mlp-unused-view": Recipe(find_unused=True, bucket_view=True, backwards=True, scheduler="onecycle"),
    "mlp-carry": Recipe(rng="carry", bucket_cap=MANY_BUCKETS, backwards=True, scaler="bf16", clip=True),
    "mlp-closure": Recipe(closure=True, scheduler="onecycle", accumulate=3, no_sync=True, ema="dict"),
    "mlp-compiled": Recipe(compile="whole", optimizer="sgd", clip=True),
    "conv": Recipe("conv", "sgd", "onecycle", "bf16", clip=True),
    "conv-view": Recipe("conv", "adamw", bucket_view=True, bucket_cap=MANY_BUCKETS, accumulate=3, no_sync=True),
    "conv-private": Recipe("conv", "sgd", no_broadcast_buffers=True, accumulate=3, ema="dict"),
    "conv-carry": Recipe("conv", "adafactor", no_broadcast_buffers=True, rng="carry", frozen=True),
    "conv-static": Recipe("conv", "adamw", "onecycle", "fp16", static_graph=True, ema="dict"),
    "gpt": Recipe("gpt", "adamw", "onecycle", clip=True, ema="module", bucket_cap=MANY_BUCKETS),
    "gpt-accumulate": Recipe("gpt", "adafactor", "onecycle", accumulate=3, no_sync=True, frozen=True),
    "gpt-scaler": Recipe("gpt", "sgd", scaler="bf16", accumulate=3, clip=True, bucket_view=True),
    "gpt-carry": Recipe("gpt", "adamw", rng="carry", accumulate=3, no_sync=True, ema="dict", scaler="fp16"),
}

SHARDED: dict[str, Recipe] = {
    "hsdp": Recipe("gpt", "adamw", "onecycle", parallel="hsdp", clip=True, ema="dict", mixed=True),
    "hsdp-meta": Recipe("gpt", "sgd", parallel="hsdp", meta=True, reshard="off", accumulate=3, no_sync=True),
    "hsdp-recompute": Recipe(
        "gpt", "adamw", parallel="hsdp", reshard="on", recompute=True, kernel="fused", groups=True, accumulate=3
    ),
    "hsdp-second": Recipe("mlp", "counting", "onecycle", parallel="hsdp", second=True, clip=True, frozen=True),
    "hsdp-scaler": Recipe("mlp", "adamw", parallel="hsdp", scaler="fp16", clip=True, kernel="foreach", backwards=True),
    "hsdp-carry": Recipe("gpt", "adamw", parallel="hsdp", rng="carry", second=True, ema="dict"),
    "hsdp-compiled": Recipe("gpt", "adamw", parallel="hsdp", compile="blocks", clip=True),
    "tp-dp": Recipe("mlp", "adamw", "onecycle", parallel="tp-dp", clip=True, groups=True, ema="dict"),
    "tp-dp-accumulate": Recipe("mlp", "sgd", parallel="tp-dp", kernel="foreach", accumulate=3, no_sync=True),
    "tp-dp-carry": Recipe("mlp", "counting", parallel="tp-dp", rng="carry", clip=True, backwards=True, recompute=True),
}
"""Each piece of the state is on several ranks, none has all of it: rows of a mesh are replicas of each other."""

WIDE: dict[str, Recipe] = {"hsdp-wide": Recipe("gpt", "adamw", parallel="hsdp", shards=3, clip=True)}
"""As these, with rows of three."""

SINGLE: dict[str, Recipe] = {
    "fsdp": Recipe("gpt", "adamw", parallel="fsdp"),
    "tp": Recipe("mlp", "adamw", parallel="tp", clip=True),
}
"""Each piece exists once, so a loss ends the job."""

RECIPES = {**VARIANTS, **SHARDED, **WIDE, **SINGLE}


def worlds(name: str) -> tuple[int, ...]:
    """With how many ranks a variant is tried."""
    if name in VARIANTS:
        return (2, 3, 4)
    if name in SINGLE:
        return (3,) if RECIPES[name].parallel == "fsdp" else (2,)
    return (4, 6) if name in SHARDED else (6,)


def chosen(prefixes: str) -> list[str]:
    """The variants whose names begin with one of these words, which are separated by commas; all without any."""
    words = prefixes.split(",") if prefixes else [""]
    unknown = [word for word in words if not any(name.startswith(word) for name in RECIPES)]
    if unknown:
        raise ValueError(f"no variant begins with {unknown[0]!r}: there are {', '.join(RECIPES)}")
    return list(dict.fromkeys(chain.from_iterable((n for n in RECIPES if n.startswith(word)) for word in words)))
