"""What each verb takes: one record a verb, spelled once, from which its parser is made and which its work gets."""
