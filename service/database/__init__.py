"""What the results database says, as queries and as the types that leave the building; no HTTP."""
