"""deeprok: reinforcement learning that keeps working when the world differs from the model."""
