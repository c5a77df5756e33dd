"""Routes that speak token ids: what a prompt becomes, and generation from ids to ids."""
