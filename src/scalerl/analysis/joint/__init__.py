"""Results about several curves together: pooling, plans, transfer and sealed forecasts, in words and pictures."""
