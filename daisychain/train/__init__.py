"""Inside a rank: the training API, the weighted sync, the batches, the bench. The only folder with torch."""
