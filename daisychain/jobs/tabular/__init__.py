"""Learn one column of a CSV file from the others: prepare (head), train (rank), predict (afterwards)."""
