"""Who comes first: the orders that policies are composed of, one a file."""
