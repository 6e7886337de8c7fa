"""What is to be trained: params files read, held to their schema and written out as runs."""
