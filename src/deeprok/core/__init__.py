"""What every other part stands on: errors, files, records."""
