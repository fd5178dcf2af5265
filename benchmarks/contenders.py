"""Training by deeprok, as the benchmarks measure it."""

from __future__ import annotations

from typing import Any

from harness import Measure, clock


def training(
    algorithm: str,
    seeds: int = 1,
    chunks: int = 2,
    ahead: int = 0,
    span: int | None = None,
    preset: str = "tuned",
    **changes: Any,
) -> Measure:
    """Training as it runs, without the run folder.

    Args:
      algorithm: a row of deeprok's table.
      seeds: seeds vmapped together. A step of the measured time is one step of one seed.
      chunks: chunks that a repeat consists of.
      ahead: steps to take before the first repeat.
      span: steps after which the training starts anew; never if None.
      preset: where the settings come from.
      changes: settings that differ from the preset's.
    """
    import jax
    import jax.numpy as jnp

    from deeprok.runs.settings import make_config
    from deeprok.training.scan import make_program

    # So many episodes that no seed ever stands still.
    config = make_config(algorithm, preset, **{"episodes": 1_000_000, "snapshot_every": 0, **changes})
    program = make_program(config)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    init = jax.jit(jax.vmap(program.init))
    states, t = init(keys), 0

    def advance() -> None:
        nonlocal states, t
        states, _ = program.advance(states, t)
        t += 1

    # The first chunk compiles, and in part of it nothing is learned yet.
    while t * config.learner.chunk_steps < max(ahead, 1):
        advance()
    jax.block_until_ready(states)

    def measure() -> float:
        nonlocal states, t
        if span is not None and (t + chunks) * config.learner.chunk_steps > span:
            states, t = init(keys), 0
            advance()
            jax.block_until_ready(states)
        start = clock()
        for _ in range(chunks):
            advance()
        jax.block_until_ready(states)
        return (clock() - start) / (chunks * config.learner.chunk_steps * seeds)

    return measure
