"""From requests to completions: an Engine samples them, and knows nothing of what they are for.

requests -> scheduler -> prefill -> decode a chunk -> progress (budgets, markers, stops) -> completions
             slots        cache      body, sampling    plain numpy
"""
