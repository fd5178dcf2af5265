"""The environments that the command line knows by name: those in JAX, and Gymnasium's by their ids."""

from deeprok.core.registry import Registry
from deeprok.environments.base import AnyEnvironment, EnvironmentPart
from deeprok.environments.ready_made import accept, find

ENVIRONMENTS: Registry[EnvironmentPart] = Registry(
    "environment",
    {
        "acrobot": "deeprok.environments.acrobot:PART",
        "cartpole": "deeprok.environments.cartpole:PART",
        "deep_sea": "deeprok.environments.deep_sea:PART",
        "ferry": "deeprok.environments.ferry:PART",
        "hard_cartpole": "deeprok.environments.hard_cartpole:PART",
        "market": "deeprok.environments.market:PART",
        "mountain_car": "deeprok.environments.mountain_car:PART",
        "pendulum": "deeprok.environments.pendulum:PART",
        "road": "deeprok.environments.road:PART",
        "rocket": "deeprok.environments.rocket:PART",
        "swing_up": "deeprok.environments.swing_up:PART",
    },
    accept,
    find=find,
    more="Gymnasium's have their ids, such as Acrobot-v1",
)

_usual: dict[str, tuple[EnvironmentPart, AnyEnvironment]] = {}


def usual_environment(name: str) -> AnyEnvironment:
    """The environment of that name, or `module:object`, with its default settings.

    It is the same object every time, so that what one call has compiled for it serves the next.
    """
    part = ENVIRONMENTS.find(name, "env")
    if name not in _usual or _usual[name][0] is not part:  # a user's module may have been loaded anew
        _usual[name] = part, part.make(part.settings())
    return _usual[name][1]
