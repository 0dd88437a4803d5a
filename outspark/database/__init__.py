"""PostgreSQL, whatever a table means: names, sessions, shapes, and Outspark's own small tables."""
