"""Operations on tables: statistics, dead events, pruning, reaping, partitions, jEAP's housekeeping."""
