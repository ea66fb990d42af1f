"""Several runs side by side: comparisons, studies, rounds of rejection sampling."""
