"""Model execution: turns a scheduler output into tokens on a real transformers model."""
