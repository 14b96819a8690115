"""The Jinja templates of model cards, and nothing else."""
