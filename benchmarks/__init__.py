"""Against the limit, in the same run, as ratios: these machines are noisy."""
