"""Present pooling, plans, transfer and sealed forecasts of several curves as text, JSON, tables and figures."""
