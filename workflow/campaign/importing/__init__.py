"""Import of logs that were made without this program, which `campaign import` turns into a campaign with records."""
