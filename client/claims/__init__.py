"""Published claims about scheduling policies, put to the test: each policy beside its baseline, on
real servers, under the traffic of its paper's evaluation, scaled to the served model."""
