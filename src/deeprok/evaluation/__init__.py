"""What a trained agent does: on a grid of parameters, calibrated, exported."""
