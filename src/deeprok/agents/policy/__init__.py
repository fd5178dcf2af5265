"""Policy gradients on an ensemble of models."""
