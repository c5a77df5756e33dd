"""The sources of checkpoints: paths, the Hugging Face hub, web servers, and package indexes."""
