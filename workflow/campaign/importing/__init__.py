"""From a directory of logs that were made without us to a campaign with records: what `campaign import` does."""
