"""The application's side: a service writes events in its own transaction."""
