"""Specs made of other systems' files and command lines. What has no equivalent is listed, never dropped."""
