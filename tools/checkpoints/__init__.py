"""Random-weight checkpoints in the Hugging Face layout, made without torch."""
