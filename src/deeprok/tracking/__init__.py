"""Experiment trackers: the metrics of runs in TensorBoard, Weights & Biases, MLflow or a tracker of your own."""
