"""Read logs of any format into one table, and select the series to fit from it."""
