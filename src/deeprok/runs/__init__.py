"""Run folders: settings, checkpoints and metrics on disk."""
