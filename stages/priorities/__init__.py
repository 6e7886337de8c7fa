"""Missing trainings from which most decided claims can be expected, and what each interim analysis can show."""
