"""The inbox in the bench: what consuming and handling cost, beside the same statements with nothing around them."""
