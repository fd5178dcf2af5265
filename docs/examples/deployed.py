"""A policy without JAX: reads an exported JSON file and acts with numpy alone."""

import json

import numpy as np

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


class Policy:
    def __init__(self, path):
        with open(path) as file:
            self.network = json.load(file)

    def act(self, obs):
        """The index of an action; or, where actions are continuous, an array of them."""
        activate = ACTIVATIONS[self.network["activation"]]
        x = np.asarray(obs) * self.network["input_scale"]
        *hidden, last = self.network["layers"]
        for layer in hidden:
            x = activate(np.asarray(layer["weights"]) @ x + layer["bias"])
        x = np.asarray(last["weights"]) @ x + last["bias"]
        if "interval" not in self.network:
            return int(np.argmax(x))
        if "output_activation" in self.network:
            x = np.tanh(x)
        low, high = (np.asarray(self.network["interval"][end]) for end in ("low", "high"))
        return low + (high - low) * (np.clip(x, -1, 1) + 1) / 2  # −1 is the low end, 1 the high one

    def name(self, action):
        return self.network["actions"][action]
