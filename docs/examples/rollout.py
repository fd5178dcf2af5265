"""Plays an exported policy in Gymnasium's Cart-Pole: python rollout.py policy.json"""

import sys

import gymnasium
from deployed import Policy


def rollout(act, episodes=10):
    """The return of each episode; `act` is a function from an observation to an action."""
    env = gymnasium.make("CartPole-v1")
    returns = []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += reward
            over = terminated or truncated
        returns.append(total)
    env.close()
    return returns


if __name__ == "__main__":
    print(rollout(Policy(sys.argv[1]).act))
