"""What clients ask for, field by field: checked, and made into prompts, sampling and constraints of the engine."""
