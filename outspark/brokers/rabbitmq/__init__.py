"""RabbitMQ: its connection and its publisher."""
