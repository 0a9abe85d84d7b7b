"""Reports: tables, pictures and pages from the figures."""
