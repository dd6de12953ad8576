"""Import of logs of other programs, which `campaign import` turns into a campaign with records."""
