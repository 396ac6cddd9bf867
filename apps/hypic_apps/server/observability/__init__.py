"""What is logged and measured."""
