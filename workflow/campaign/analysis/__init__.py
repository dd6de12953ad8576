"""From records to tables, statistics, comparisons, published claims and recommendations."""
