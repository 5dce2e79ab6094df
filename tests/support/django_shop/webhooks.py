"""The handlers of the shop. Each test registers its own."""
