"""Parameters from logs of a real system: how well each is known, and which models are plausible."""
