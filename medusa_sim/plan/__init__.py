"""A priced grid -> what to run: where speculation pays, with how many candidates, and how sure that is."""
