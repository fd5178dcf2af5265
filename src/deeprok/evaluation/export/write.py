"""Writes a policy in any of the formats, after comparing what is written with the agent."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.network import Network
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.environments.base import AnyEnvironment
from deeprok.evaluation.export import as_c, as_json, as_onnx
from deeprok.evaluation.export.policy import Format, make_policy
from deeprok.evaluation.trained import Run, load
from deeprok.runs.folder import Keep

#: A format is one file beside this one.
FORMATS: dict[str, Format] = {"json": as_json.FORMAT, "onnx": as_onnx.FORMAT, "c": as_c.FORMAT}

_CHECKED_STATES = 10_000


def export(
    run: Run | str | os.PathLike[str], out: str | Path, format: str | None = None, keep: Keep | None = None
) -> Path:
    """Writes a trained policy as JSON, ONNX or C, after checking on 10,000 states that it acts as the agent does.

    Args:
      run: a loaded run, a run folder, or a folder of seeds, of which the run that did best on held-out models is taken.
      out: the file to write; its folder is made if there is none. The functions of a C header are named after it:
        `policy.h` has `deeprok_policy_act`.
      format: `json`, `onnx` (needs the extra `onnx`) or `c`, a header for microcontrollers; by default what the file's
        name ends with: .json, .onnx or .h.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones; by default those of the
        loaded run, and the best ones of a folder.

    Returns:
      The folder of the run whose policy was written.

    Example:
      >>> folder = deeprok.export("runs/rok", "policy.onnx")
    """
    path = Path(out)
    kind = format or _kind(path)
    trained = run if isinstance(run, Run) and keep in (None, run.keep) else load(run, keep=keep or "best")
    settings = trained.settings
    with settings.arithmetic():
        export_policy(trained.network, trained.weights, trained.env, kind, path, settings.algorithm, settings.digest())
    return trained.folder


def _kind(path: Path) -> str:
    """The format of files with such a name."""
    for kind, each in FORMATS.items():
        if path.suffix.lower() == each.ending:
            return kind
    *others, last = FORMATS
    endings = " nor ".join(each.ending for each in FORMATS.values())
    raise DeeprokError(
        f"out is {path}, which ends with neither {endings}; give the format, {', '.join(others)} or {last}"
    )


def export_policy(
    network: Network,
    theta: np.ndarray,
    env: AnyEnvironment,
    kind: str,
    out: Path,
    algorithm: str = "",
    settings: str = "",
) -> None:
    """Writes a policy, after checking on 10,000 states that it acts as the trained agent does."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    policy = make_policy(network, theta, env, algorithm, settings)
    data = FORMATS[kind].write(policy, out)
    scale = np.asarray(env.observation_scale)
    noise = jax.random.normal(jax.random.key(0), (_CHECKED_STATES, len(scale)))
    obs = (np.asarray(noise) * scale).astype(np.float32)
    actions = FORMATS[kind].act(policy, data, obs)
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(obs)))
    if env.actions.continuous:
        wrong = int((~np.isclose(actions, env.actions.choose(jnp.asarray(q)), rtol=1e-4, atol=1e-4)).any(axis=1).sum())
    else:
        chosen = np.take_along_axis(q, np.asarray(actions)[:, None], axis=1)[:, 0]
        # Where two actions are equal to rounding either may come out.
        wrong = int((chosen < q.max(axis=1) - 1e-5 * (1 + np.abs(q).max(axis=1))).sum())
    if wrong:
        raise DeeprokError(
            f"the exported policy differs from the agent on {wrong} of {_CHECKED_STATES} states; nothing written"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeeprokError(f"can't make the folder {out.parent}: {error.strerror}") from error
    write_atomically(out, data)
