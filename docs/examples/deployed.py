"""A policy without JAX: reads an exported JSON file and acts with numpy alone."""

import json

import numpy as np


class Policy:
    def __init__(self, path):
        with open(path) as file:
            self.network = json.load(file)
        assert self.network["activation"] == "tanh"

    def act(self, obs):
        x = np.asarray(obs) * self.network["input_scale"]
        *hidden, last = self.network["layers"]
        for layer in hidden:
            x = np.tanh(np.asarray(layer["weights"]) @ x + layer["bias"])
        return int(np.argmax(np.asarray(last["weights"]) @ x + last["bias"]))

    def name(self, action):
        return self.network["actions"][action]
