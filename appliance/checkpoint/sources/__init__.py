"""Where checkpoints come from: paths, the Hugging Face hub, web servers, and package indexes."""
