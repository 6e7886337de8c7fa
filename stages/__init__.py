"""Claimcheck's pipeline: the verbs (`fetch` … `report`) and the library they share."""
