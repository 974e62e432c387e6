"""What the model has of the prompt: sections, tools and notices of changes."""
