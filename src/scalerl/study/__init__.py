"""The predictive half around the curves: readers of logs, series to fit, studies and their reports."""
