"""What a server keeps for its clients: responses, files and batches, in one SQLite file and one folder."""
