"""The environments that the command line knows by name."""

from deeprok.core.registry import Registry
from deeprok.environments.base import EnvironmentPart, as_part

ENVIRONMENTS: Registry[EnvironmentPart] = Registry(
    "environment",
    {
        "cartpole": "deeprok.environments.cartpole:PART",
        "deep_sea": "deeprok.environments.deep_sea:PART",
        "ferry": "deeprok.environments.ferry:PART",
        "market": "deeprok.environments.market:PART",
        "pendulum": "deeprok.environments.pendulum:PART",
        "road": "deeprok.environments.road:PART",
        "rocket": "deeprok.environments.rocket:PART",
    },
    as_part,
)
