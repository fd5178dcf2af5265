"""Many runs, as those of a sweep, in groups of equal settings: how good each group is, and what it costs."""
