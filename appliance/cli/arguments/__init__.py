"""The arguments of the verbs: one record for each verb, from which its parser is made and which its work gets."""
