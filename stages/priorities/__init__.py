"""Which missing trainings bring most claims to their next planned look, and what each look can show."""
