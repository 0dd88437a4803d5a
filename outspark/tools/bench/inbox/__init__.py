"""The inbox in the bench: what taking in and handling cost, beside the same statements with nothing around them."""
