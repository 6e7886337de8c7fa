"""What is trained when: runs that are missing, grouped, under leases, in processes; and what they will cost."""
