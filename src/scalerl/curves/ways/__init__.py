"""Several ways to fit one run: what mends a lack of fit, and averages over them."""
