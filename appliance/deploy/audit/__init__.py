"""What a deployment exposes and to whom, before and without starting it."""
