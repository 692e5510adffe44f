"""Jobs: batches of sampling tasks that outlive every process."""
