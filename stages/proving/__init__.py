"""`claimcheck equivalent`: shows that a change of code changes no number, by training with both codes."""
