"""Studies: the paper's experiment and those beyond it. Users of the library; nothing in it imports them."""
