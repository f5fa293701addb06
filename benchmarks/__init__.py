"""Against the limit and against peers, in the same run, as ratios of pairs: these machines are noisy."""
