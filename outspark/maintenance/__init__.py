"""Operations on tables: statistics, dead events, pruning, reaping, partitions, housekeeping."""
