"""Several runs of several systems: ratios with intervals, and what is stated first."""
