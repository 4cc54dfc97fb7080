"""From what a run recorded to what it means: raw records, theory, verdict, results, store and *why*."""
