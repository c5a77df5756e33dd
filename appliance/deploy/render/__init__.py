"""Files for other systems, made of a spec and its plan: supervisors, dashboards, alert rules."""
