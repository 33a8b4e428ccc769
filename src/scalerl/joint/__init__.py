"""Several curves together: what runs tell each other, and what to run next. numpy and scipy only."""
