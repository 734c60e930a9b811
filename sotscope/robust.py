"""Robust statistics: what a few outliers do not move."""

MAD_TO_SIGMA = 1.4826
"""Turns a median absolute deviation into a standard deviation, for normal numbers (1 / the normal distribution's upper
quartile; ``scipy.stats.median_abs_deviation(scale="normal")``)."""
